//! A custom model from blocks with its own loss: the example of the library guide, on several
//! layouts.

#[expect(dead_code, reason = "the test calls the example's run, not its main")]
#[path = "../../../trainer/examples/own_model.rs"]
mod own_model;

use lockstep_config::{Sources, resolve};
use lockstep_harness::devices::default_device;
use lockstep_harness::runs::{Runs, train_on_threads};
use lockstep_model::{
    Block, BlockIo, Context, Flops, Grads, MicrobatchShape, Mode, Param, Saved, SavedLen, describe,
};
use lockstep_tensor::device::{self, View, ViewMut};
use lockstep_trainer::{Options, Summary};

/// Runs the example in a folder of its own.
fn run(runs: &Runs, name: &str, settings: &[&str]) -> Summary {
    let dir = run_dir(runs, name);
    let settings: Vec<_> = settings.iter().copied().chain([dir.as_str()]).collect();
    own_model::run(&settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

/// Trains the family of the example's recipe, without the custom head.
fn run_family(runs: &Runs) -> Summary {
    let sets = vec!["run.workers=1".to_owned(), run_dir(runs, "family"), default_device()];
    let sources = Sources { preset: Some("tiny".into()), sets, ..Sources::default() };
    let recipe = resolve(&sources).expect("it resolves");
    train_on_threads(&recipe, runs.world(), Options::default()).expect("it trains")
}

fn run_dir(runs: &Runs, name: &str) -> String {
    format!("run.dir={}", runs.path().join(name).display())
}

#[test]
fn every_layout_trains_it_to_equal_bits() {
    let runs = Runs::new("custom-model");
    let alone = run(&runs, "alone", &["run.workers=1"]);
    assert!(alone.final_loss < alone.first_loss, "{alone:?}");
    for (name, settings) in [
        ("zero-0", &["run.workers=4", "parallel.zero=0"][..]),
        ("zero-1", &["run.workers=4", "parallel.zero=1"]),
        ("zero-3", &["run.workers=2", "parallel.zero=3", "parallel.recompute=full"]),
        ("pipeline", &["run.workers=4", "parallel.pipeline=2", "parallel.zero=1"]),
    ] {
        let other = run(&runs, name, settings);
        assert_eq!(other.losses_hash, alone.losses_hash, "{settings:?}");
        assert_eq!(other.weights_hash, alone.weights_hash, "{settings:?}");
    }
    let family = run_family(&runs);
    assert_ne!(family.losses_hash, alone.losses_hash, "its own head and loss were trained");
}

/// A head that makes its loss in backward, as the one of very many logits does.
struct DeferredLoss(Box<dyn Block>);

impl Block for DeferredLoss {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn params(&self) -> &[Param] {
        self.0.params()
    }

    fn io(&self) -> BlockIo {
        self.0.io()
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        self.0.saved_len(shape)
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        self.0.scratch_len(shape)
    }

    fn flops_per_token(&self, num_tokens: usize) -> Flops {
        self.0.flops_per_token(num_tokens)
    }

    fn defers_loss(&self, _shape: MicrobatchShape) -> bool {
        true
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input: View<'_>,
        output: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> device::Result<()> {
        match ctx.mode {
            Mode::Train { .. } => Ok(()),
            Mode::Evaluate => self.0.forward(ctx, params, input, output, saved),
        }
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input: View<'_>,
        mut saved: Saved<'_>,
        d_stream: ViewMut<'_>,
        grads: Grads<'_>,
    ) -> device::Result<()> {
        let nothing = ViewMut::of::<f32>(&mut []);
        self.0.forward(ctx, params, input, nothing, saved.reborrow())?;
        self.0.backward(ctx, params, input, saved, d_stream, grads)
    }

    fn deferred_len(&self, shape: MicrobatchShape) -> usize {
        self.0.deferred_len(shape)
    }

    fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input: View<'_>,
        mut saved: Saved<'_>,
        d_stream: ViewMut<'_>,
        deferred: ViewMut<'_>,
    ) -> device::Result<()> {
        let nothing = ViewMut::of::<f32>(&mut []);
        self.0.forward(ctx, params, input, nothing, saved.reborrow())?;
        self.0.backward_inputs(ctx, params, input, saved, d_stream, deferred)
    }

    fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input: View<'_>,
        saved: Saved<'_>,
        deferred: ViewMut<'_>,
        grads: Grads<'_>,
    ) -> device::Result<()> {
        self.0.backward_weights(ctx, params, input, saved, deferred, grads)
    }
}

#[test]
fn a_loss_that_backward_makes_is_that_of_forward() {
    let runs = Runs::new("custom-model");
    let expected = run_family(&runs);
    for (name, settings) in [
        ("one", &["run.workers=1"][..]),
        ("three", &["run.workers=2", "parallel.zero=3"]),
        ("half", &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        ("gpipe", &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=gpipe"]),
    ] {
        let sets = settings.iter().map(ToString::to_string);
        let sets = sets.chain([run_dir(&runs, name), default_device()]).collect();
        let sources = Sources { preset: Some("tiny".into()), sets, ..Sources::default() };
        let recipe = resolve(&sources).expect("it resolves");
        let found = lockstep_trainer::train_on_threads(&recipe, runs.world(), |_rank| {
            let mut model = describe(&recipe.model);
            let head = model.blocks.pop().expect("a model has a head");
            model.blocks.push(Box::new(DeferredLoss(head)));
            Options { model: Some(model), ..Options::default() }
        });
        let found = found.unwrap_or_else(|error| panic!("{settings:?}: {error}"));
        assert_eq!(found.losses_hash, expected.losses_hash, "{settings:?}");
        assert_eq!(found.weights_hash, expected.weights_hash, "{settings:?}");
        assert_eq!(found.validation_loss, expected.validation_loss, "{settings:?}");
    }
}

//! Direct preference optimization of PyTorch: losses of its steps from the text of pairs, and
//! gradients of every weight and of every adapter.

use lockstep_checkpoint::Tensors;
use lockstep_comm::{Comm, Options as CommOptions};
use lockstep_config::{Dtype, Recipe, Sources};
use lockstep_data::IGNORE;
use lockstep_harness::{Runs, Tolerance, golden};
use lockstep_model::{Microbatch, MicrobatchShape};
use lockstep_optim::{Clip, Update};
use lockstep_parallel::Groups;
use lockstep_parallel::from_recipe::mesh_of;
use lockstep_platform::World;
use lockstep_tensor::Isa;
use lockstep_tensor::device::{Compute, Preferences, View};
use lockstep_trainer::{materialize, pretrained};
use serde_json::Value;

/// Trained tensors: the name of their records, and whether they are adapters.
const TRAINED: [(&str, bool); 2] = [("full", false), ("lora", true)];

/// Recorded tokens, reference and losses.
struct Steps {
    beta: f64,
    /// Denominator's addend of AdamW.
    eps: f64,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    /// Losses of the sequences under the reference.
    references: Vec<f64>,
    losses: Vec<f64>,
}

impl Steps {
    fn read(world: &World, trained: &str) -> Self {
        let path = golden::folder().join("dpo").join("steps.json");
        let text = world.files().read_to_string(&path).expect("committed");
        let recorded: Value = serde_json::from_str(&text).expect("JSON");
        let numbers = |name: &str| -> Vec<f64> {
            let flat = |value: &Value| match value {
                Value::Array(row) => row.clone(),
                number => vec![number.clone()],
            };
            let rows = recorded[name].as_array().expect("a list");
            rows.iter().flat_map(flat).map(|x| x.as_f64().expect("a number")).collect()
        };
        let token = |id: &f64| if *id < 0.0 { IGNORE } else { *id as u32 };
        let tokens = |name: &str| numbers(name).iter().map(token).collect();
        Self {
            beta: recorded["beta"].as_f64().expect("a number"),
            eps: recorded["eps"].as_f64().expect("a number"),
            inputs: tokens("inputs"),
            targets: tokens("targets"),
            // PyTorch's log-probabilities are losses with the other sign.
            references: numbers("references").iter().map(|x| -x).collect(),
            losses: numbers(trained),
        }
    }

    fn num_pairs(&self) -> usize {
        self.references.len() / 2
    }
}

/// Recipe of the recorded training, whose batch has all pairs, in micro-batches of one pair.
fn recipe(steps: &Steps, has_adapters: bool) -> Recipe {
    let folder = golden::folder().join("dpo");
    let path = |name: &str| folder.join(name).display().to_string();
    let mut sets = vec![
        format!("model.from={}", folder.display()),
        format!("data.source={}", path("pairs.jsonl")),
        // Every pair trains; those of validation are the same ones.
        format!("data.validation={}", path("pairs.jsonl")),
        format!("finetune.chat_template={}", path("chat.jinja")),
        format!("finetune.beta={}", steps.beta),
        format!("optim.eps={}", steps.eps),
        format!("train.steps={}", steps.losses.len()),
        format!("train.batch={}", 2 * steps.num_pairs()),
    ];
    if has_adapters {
        sets.push(format!("finetune.adapter={}", path("adapter")));
    }
    let others = [
        "data.format=chat",
        "data.tokenizer=byte",
        "finetune.method=dpo",
        "train.microbatch=2",
        "train.eval_batches=1",
        "numerics.invariant_up_to=2",
        "optim.name=adamw",
        "optim.warmup_steps=0",
        "optim.schedule=constant",
        "optim.clip=0",
        "optim.lr=1e-3",
        "optim.beta1=0.9",
        "optim.beta2=0.95",
        "optim.weight_decay=0.1",
        "run.workers=1",
        "run.threads=1",
        "run.isolation=threads",
        "run.device=cpu",
    ];
    sets.extend(others.map(str::to_owned));
    let sources = Sources { sets, ..Sources::default() };
    pretrained::resolve(&sources, &lockstep_platform::real()).expect("a valid recipe")
}

#[test]
fn a_run_on_pairs_has_the_losses_of_pytorch() {
    let mut runs = Runs::new("golden-preferences");
    for (name, has_adapters) in TRAINED {
        let steps = Steps::read(runs.world(), name);
        let recipe = recipe(&steps, has_adapters);
        let losses = runs.finish(&recipe).losses;
        // Rendering, the mask of prompts, truncation and the pass of the reference are the run's.
        let close = Tolerance::Close(Dtype::F32, recipe.model.vocab);
        close.assert(name, &losses, &steps.losses);
        let starts_as_reference = (losses[0] - std::f64::consts::LN_2).abs() < 1e-12;
        assert_eq!(starts_as_reference, !has_adapters, "the reference has no adapters");
    }
}

#[test]
fn gradients_of_preferences_are_those_of_pytorch() {
    let world = lockstep_platform::real();
    let path = golden::folder().join("dpo").join("grads.safetensors");
    let recorded = Tensors::open(&world, &path).expect("committed");
    for (name, has_adapters) in TRAINED {
        let steps = Steps::read(&world, name);
        let recipe = recipe(&steps, has_adapters);
        let compute = Compute::single(Isa::detect());
        let alone = &Comm::threads(&world, 1, &CommOptions::default()).expect("one worker")[0];
        let groups = Groups::new(alone, mesh_of(&recipe)).expect("one worker");
        let mut learner = materialize(&recipe, &compute, &groups, &world).expect("one worker");
        pretrained::load(&recipe, &world, &mut learner).expect("the recorded folder");
        let shape = MicrobatchShape { sequences: 2, tokens: recipe.model.context };
        let (rows, num_pairs) = (shape.sequences * shape.tokens, steps.num_pairs());
        let microbatch = |index: usize| {
            let pair = &steps.references[2 * index..2 * (index + 1)];
            let tokens = index * rows..(index + 1) * rows;
            let references = View::of(pair);
            Microbatch {
                shape,
                inputs: View::of(&steps.inputs[tokens.clone()]),
                targets: View::of(&steps.targets[tokens]),
                first_sample: 2 * index as u64,
                num_targets: num_pairs as u64,
                documents: None,
                preferences: Some(Preferences { references, beta: steps.beta }),
            }
        };
        let close = Tolerance::Close(Dtype::F32, recipe.model.vocab);
        for (step, expected) in (0..).zip(&steps.losses) {
            let sum =
                learner.replica.run_microbatches(&compute, num_pairs as u64, step, &microbatch);
            let loss = sum.expect("one worker") / num_pairs as f64;
            learner.replica.finish_reduce(&compute).expect("one worker");
            close.assert(&format!("{name}: loss of step {step}"), &[loss], &[*expected]);
            let is_last = step as usize + 1 == steps.losses.len();
            let label = if is_last { "last" } else { "first" };
            if step == 0 || is_last {
                let mut num_checked = 0;
                for (slot, grad) in learner.replica.own_grads() {
                    let mut expected = vec![0.0; grad.len()];
                    let tensor = format!("{name}.{label}.{}", slot.name);
                    recorded.read(&tensor, 0, &mut expected).expect("a recorded gradient");
                    close.assert(&tensor, grad, &expected);
                    num_checked += 1;
                }
                let prefix = format!("{name}.{label}.");
                let num_recorded = recorded.names().filter(|n| n.starts_with(&prefix)).count();
                assert_eq!(num_checked, num_recorded, "every tensor, and no other");
            }
            let update = Update { count: step + 1, lr: learner.lr(step), clip: Clip::uniform(1.0) };
            learner.replica.step(&compute, &mut learner.optimizer, &update).expect("one worker");
        }
    }
}

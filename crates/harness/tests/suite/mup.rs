//! Width transfer by muP: the base's bits at its width, equal bits on layouts, activations whose
//! changes do not grow with the width, learning rates that transfer, and exports without it.

use lockstep_checkpoint::ElementType;
use lockstep_config::Recipe;
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::runs::soak;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, Tolerance};
use lockstep_model::{
    Context, Microbatch, MicrobatchShape, Mode, Saved, Scratch, SingleRank, describe,
};
use lockstep_tensor::device::{View, ViewMut};
use lockstep_tensor::{Cpu, Isa};
use lockstep_trainer::convert::{Target, convert};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use std::path::Path;

const COMMON: [&str; 5] = [
    "train.steps=3",
    "train.eval_batches=1",
    "numerics.invariant_tensor_up_to=2",
    "run.isolation=threads",
    "run.threads=1",
];

const TOKENS: [u32; 12] = [7, 0, 255, 101, 32, 116, 104, 101, 10, 200, 3, 7];

fn with(small: &Small, sets: &[&[&str]]) -> Recipe {
    small.with(&[&COMMON[..], &sets.concat()].concat())
}

#[test]
fn a_model_of_the_base_width_has_the_bits_of_one_without_mup() {
    let mut runs = Runs::new("mup");
    let base = ["model.mup_base_width=32", "model.mup_base_head_dim=8"];
    for small in [LLAMA, GPT2] {
        for optimizer in ["optim.name=adamw", "optim.name=sgd", "optim.name=lion"] {
            let plain = runs.finish(&with(&small, &[&[optimizer]])).hashes();
            let scaled = runs.finish(&with(&small, &[&[optimizer], &base])).hashes();
            assert_eq!(scaled, plain, "{} {optimizer}", small.name);
        }
    }
}

#[test]
fn every_layout_trains_a_wide_model_to_the_same_bits() {
    let mut runs = Runs::new("mup");
    let wide = ["model.mup_base_width=16", "model.mup_base_head_dim=4"];
    for (small, optimizer) in
        [(LLAMA, "optim.name=adamw"), (GPT2, "optim.name=adamw"), (GPT2, "optim.name=momentum")]
    {
        let sets = [optimizer, "optim.lr=1e-2"];
        let alone = runs.finish(&with(&small, &[&sets, &wide]));
        let plain = runs.finish(&with(&small, &[&sets]));
        assert_ne!(alone.hashes(), plain.hashes(), "muP makes a difference");
        for layout in [
            &["run.workers=2", "parallel.zero=1"][..],
            &["run.workers=3", "parallel.zero=2", "parallel.recompute=full"],
            &["run.workers=4", "parallel.zero=3", "parallel.bucket_bytes=1"],
            &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
            &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2"],
            &["run.workers=2", "parallel.tensor=2", "parallel.sequence=true"],
        ] {
            let recipe = with(&small, &[&sets, &wide, layout]);
            let found = runs.finish(&recipe);
            assert_eq!(found.hashes(), alone.hashes(), "{} {optimizer} {layout:?}", small.name);
            assert_traffic_and_memory_as_predicted(&recipe, &found);
        }
    }
}

fn logits(folder: &Path, runs: &Runs) -> Vec<f32> {
    let pretrained = Pretrained::open(folder, runs.world()).expect("a model");
    let recipe = pretrained.recipe(runs.world()).expect("its recipe");
    let generator = Generator::load(&pretrained, &recipe, runs.world()).expect("all its tensors");
    generator.logits(&TOKENS).expect("the CPU runs every operation").concat()
}

/// Multipliers are powers of two, so moving them into weights rounds nothing. An export has one
/// tensor-parallel shard.
#[test]
fn an_export_has_no_multipliers_and_computes_the_same_logits() {
    let mut runs = Runs::new("mup");
    let wide = [
        "run.device=cpu",
        "numerics.invariant_tensor_up_to=1",
        "model.width=64",
        "model.heads=4",
        "model.kv_heads=4",
        "model.mup_base_width=16",
        "model.mup_base_head_dim=4",
    ];
    for family in [
        &["model.family=llama"][..],
        &["model.family=llama", "model.tied=true", "model.qkv_bias=true"],
        &["model.family=llama", "model.qk_norm=true"],
        &["model.family=llama", "model.model_type=olmo2"],
        &["model.family=llama", "model.model_type=phi3"],
        &["model.family=gpt2", "model.tied=true"],
        &["model.family=gpt_neox"],
        &["model.family=bloom", "model.tied=true", "model.ffn=256"],
    ] {
        let trained = runs.finish(&with(&LLAMA, &[&wide, family]));
        let folder = runs.path().join("exported");
        let format = ElementType::F32;
        let target = Target::HuggingFace { format, shard_bytes: 1 << 30, max_positions: None };
        convert(&trained.dir, &folder, target, runs.world(), &mut |_, _| {}).expect("it exports");
        let exported = Pretrained::open(&folder, runs.world()).expect("a model");
        assert_eq!(exported.model().mup, lockstep_config::Mup::OFF, "{family:?}");
        let ours = logits(&trained.dir, &runs);
        Tolerance::Exact.assert(&format!("{family:?}"), &logits(&folder, &runs), &ours);
        let dcp = convert(&trained.dir, &folder, Target::Dcp, runs.world(), &mut |_, _| {});
        assert!(dcp.is_err(), "the folder exists");
        runs.world().files().remove_dir_all(&folder).expect("scratch");
        let error = convert(&trained.dir, &folder, Target::Dcp, runs.world(), &mut |_, _| {});
        let error = error.expect_err("it has no multipliers").to_string();
        assert!(error.contains("--to huggingface, which moves them into the weights"), "{error}");
    }
}

/// Outputs of all blocks for some tokens; those of the head are its logits.
fn block_outputs(folder: &Path, runs: &Runs) -> Vec<Vec<f32>> {
    let pretrained = Pretrained::open(folder, runs.world()).expect("a run");
    let blueprint = describe(pretrained.model());
    let cpu = Cpu::single(Isa::detect());
    let shape = MicrobatchShape { sequences: 1, tokens: TOKENS.len() };
    let microbatch = Microbatch {
        shape,
        inputs: View::of(&TOKENS),
        targets: View::of(&TOKENS),
        first_sample: 0,
        num_targets: 1,
        documents: None,
        preferences: None,
    };
    let mut scratch = Scratch::new(&cpu, blueprint.scratch_len(shape)).expect("memory");
    let mut outputs: Vec<Vec<f32>> = vec![Vec::new()];
    for block in &blueprint.blocks {
        let mut params = vec![0.0; block.num_params()];
        for param in block.params() {
            let values = &mut params[param.range()];
            pretrained.read_piece(param, 0, values).expect("all its tensors");
        }
        let (io, len) = (block.io(), block.saved_len(shape));
        let (mut kept, mut rebuilt) = (vec![0.0_f32; len.kept], vec![0.0_f32; len.rebuilt]);
        let (mut output, mut loss) = (vec![0.0; TOKENS.len() * io.output_width()], [0.0_f64]);
        let mut ctx = Context {
            device: &cpu,
            microbatch: &microbatch,
            mode: Mode::Evaluate,
            scratch: &mut scratch,
            collectives: &mut SingleRank,
            loss: ViewMut::of(&mut loss),
            pairs: ViewMut::of::<f64>(&mut []),
        };
        let input = outputs.last().expect("the first has none");
        let saved = Saved { kept: ViewMut::of(&mut kept), rebuilt: ViewMut::of(&mut rebuilt) };
        let (params, input) = (View::of(&params), View::of(input));
        block.forward(&mut ctx, params, input, ViewMut::of(&mut output), saved).expect("a pass");
        // In an evaluation, logits are the first values that a head keeps.
        let is_head = output.is_empty();
        outputs.push(if is_head {
            kept[..TOKENS.len() * blueprint.vocab].to_vec()
        } else {
            output
        });
    }
    outputs.remove(0);
    outputs
}

fn rms_of_difference(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    (squares.sum::<f64>() / a.len() as f64).sqrt()
}

/// Exponent of growth: the least-squares slope of logarithms.
fn exponent(widths: &[usize], sizes: &[f64]) -> f64 {
    let x: Vec<f64> = widths.iter().map(|width| (*width as f64).ln()).collect();
    let y: Vec<f64> = sizes.iter().map(|size| size.ln()).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_x, mean_y) = (mean(&x), mean(&y));
    let covariance: f64 = x.iter().zip(&y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    covariance / x.iter().map(|x| (x - mean_x).powi(2)).sum::<f64>()
}

/// Settings of a model of this width, trained with this rate: more heads of 16, and an inner width
/// in proportion.
fn of_width(width: usize, rate: f64, sets: &[&str]) -> Recipe {
    let heads = width / 16;
    let own = [
        format!("model.width={width}"),
        format!("model.heads={heads}"),
        format!("model.kv_heads={heads}"),
        format!("model.ffn={}", 3 * width),
        format!("optim.lr={rate}"),
        "run.device=cpu".to_owned(),
    ];
    let sets: Vec<&str> = own.iter().map(|set| &**set).chain(sets.iter().copied()).collect();
    with(&LLAMA, &[&sets])
}

/// Changes of every block's output over four steps, by width.
fn changes(runs: &mut Runs, widths: &[usize], rate: f64, sets: &[&str]) -> Vec<Vec<f64>> {
    let of_width = |width: &usize| {
        let mut outputs = |rate: f64, steps: &str| {
            let fixed = ["optim.schedule=constant", "optim.warmup_steps=0", steps];
            let recipe = of_width(*width, rate, &[&fixed[..], sets].concat());
            block_outputs(&runs.finish(&recipe).dir, runs)
        };
        // A rate that changes no weight leaves the initial ones.
        let (before, after) = (outputs(1e-30, "train.steps=1"), outputs(rate, "train.steps=4"));
        before.iter().zip(&after).map(|(a, b)| rms_of_difference(a, b)).collect()
    };
    widths.iter().map(of_width).collect()
}

/// The coordinate check of Yang et al. 2022 (appendix D.1): in the limit of wide models, a step
/// changes activations and logits by an amount with the exponent 0 of the width under muP, and with
/// the exponent 1 under the standard parametrisation, whose updates of hidden matrices and of the
/// head add up over all inputs. Finite widths come nearer to the exponent of their own theory.
#[test]
fn changes_of_activations_grow_with_the_width_only_without_mup() {
    let mut runs = Runs::new("mup");
    let widths = if soak() { &[64, 128, 256, 512, 1024][..] } else { &[64, 128, 256] };
    let between = f64::midpoint(0.0, 1.0);
    // Rates of small changes, which are nearly linear in the rate.
    let cases: [(&str, f64); 2] = [("adamw", 2e-3), ("sgd", 0.02)];
    for (name, rate) in cases {
        let name = format!("optim.name={name}");
        let sets = [&*name, "model.mup_base_width=64", "optim.weight_decay=0", "optim.clip=0"];
        let all = changes(&mut runs, widths, rate, &sets);
        let plain = changes(&mut runs, widths, rate, &[sets[0], sets[2], sets[3]]);
        let of_block = |all: &[Vec<f64>], block: usize| {
            let sizes: Vec<f64> = all.iter().map(|blocks| blocks[block]).collect();
            (exponent(widths, &sizes), sizes)
        };
        let num_blocks = all[0].len();
        for block in 0..num_blocks {
            let (scaled, sizes) = of_block(&all, block);
            let is_constant = scaled.abs() < between;
            assert!(is_constant, "{name}, block {block}: exponent {scaled}: {sizes:?}");
        }
        let (growth, sizes) = of_block(&plain, num_blocks - 1);
        assert!(growth > between, "{name}, logits without muP: exponent {growth}: {sizes:?}");
    }
}

/// The index of the learning rate with the lowest final loss, of rates a factor of two apart.
fn best_rate(runs: &mut Runs, width: usize, sets: &[&str]) -> (usize, Vec<f64>) {
    let fixed = ["train.steps=60", "optim.warmup_steps=6", "train.eval_batches=4"];
    let sets = [&fixed[..], sets].concat();
    let loss_at = |index: i32| {
        let outcome = runs.finish(&of_width(width, 2.0_f64.powi(index - 9), &sets));
        outcome.summary.validation_loss.expect("it is validated at the end")
    };
    let losses: Vec<f64> = (0..7).map(loss_at).collect();
    let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b]));
    (best.expect("there are rates"), losses)
}

/// With muP the best rate of the base is that of the wide model, up to the step of the grid;
/// without it, the best rate falls by the ratio of the widths, which is two steps.
#[test]
fn the_best_learning_rate_transfers_to_a_wider_model() {
    if !soak() {
        return;
    }
    let mut runs = Runs::new("mup");
    let (narrow, losses) = best_rate(&mut runs, 32, &[]);
    let (scaled, of_scaled) = best_rate(&mut runs, 128, &["model.mup_base_width=32"]);
    let (plain, of_plain) = best_rate(&mut runs, 128, &[]);
    let found = format!("{narrow} {losses:?}; {scaled} {of_scaled:?}; {plain} {of_plain:?}");
    assert!(narrow.abs_diff(scaled) <= 1, "{found}");
    assert!(narrow > plain + 1, "{found}");
}

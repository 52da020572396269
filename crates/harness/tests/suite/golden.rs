//! Logits, loss, every gradient and ten or twenty steps of AdamW against PyTorch.
//!
//! The golden files were computed in float64, so the tests measure the engine's rounding, not
//! PyTorch's.

use lockstep_comm::{Comm, CommError, Options};
use lockstep_config::{DeviceChoice, Dtype, Recipe};
use lockstep_harness::devices::computes;
use lockstep_harness::{Golden, Tolerance};
use lockstep_model::{Microbatch, MicrobatchShape};
use lockstep_optim::{Clip, Update};
use lockstep_parallel::Groups;
use lockstep_parallel::from_recipe::mesh_of;
use lockstep_tensor::device::Compute;
use lockstep_tensor::device::View;
use lockstep_trainer::learner::Learner;
use lockstep_trainer::materialize;
use std::collections::BTreeMap;

/// A recorded model with the recorded weights, and the recorded batch.
struct Case {
    golden: Golden,
    recipe: Recipe,
    learner: Learner,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Case {
    fn new(cpu: &Compute, family: &str, microbatch_size: usize, compute: Dtype) -> Self {
        let golden = Golden::load(&lockstep_platform::real(), family);
        let mut recipe = golden.recipe(microbatch_size);
        recipe.precision.compute = compute;
        recipe.run.device = match cpu.accelerator() {
            Some(_) => DeviceChoice::Cuda(None),
            None => DeviceChoice::Cpu,
        };
        let world = lockstep_platform::real();
        let alone = &Comm::threads(&world, 1, &Options::default()).expect("one worker")[0];
        let groups = Groups::new(alone, mesh_of(&recipe)).expect("one worker");
        let mut learner = materialize(&recipe, cpu, &groups, &world).expect("one worker");
        let num_params = learner.replica.blueprint().owned_params().count();
        assert_eq!(num_params, golden.params().count(), "{family}: parameters");
        let values: BTreeMap<_, _> = golden
            .params()
            .map(|name| (name.to_owned(), golden.f32(&format!("weights.{name}"))))
            .collect();
        let restored = learner.replica.restore(|param| {
            let shape = golden.shape(&format!("weights.{}", param.name));
            assert_eq!(param.shape, shape, "{}", param.name);
            Ok::<_, CommError>(&values[&param.name])
        });
        restored.expect("one worker");
        let (inputs, targets) = (golden.tokens("inputs"), golden.tokens("targets"));
        Self { golden, recipe, learner, inputs, targets }
    }

    fn num_microbatches(&self) -> usize {
        self.recipe.num_microbatches()
    }

    /// Source of the micro-batches and learner, borrowed separately.
    fn microbatches<'a>(&'a mut self) -> (impl Fn(usize) -> Microbatch<'a>, &'a mut Learner) {
        let sequences = self.recipe.train.microbatch_size;
        let shape = MicrobatchShape { sequences, tokens: self.recipe.model.context };
        let (inputs, targets) = (&self.inputs, &self.targets);
        let num_targets = targets.iter().filter(|t| **t != lockstep_data::IGNORE).count();
        let microbatch = move |index: usize| {
            let rows = index * shape.rows()..(index + 1) * shape.rows();
            Microbatch {
                shape,
                inputs: View::of(&inputs[rows.clone()]),
                targets: View::of(&targets[rows]),
                first_sample: (index * sequences) as u64,
                num_targets: num_targets as u64,
                documents: None,
                preferences: None,
            }
        };
        (microbatch, &mut self.learner)
    }

    /// Forward and backward of the whole batch; the mean loss.
    fn run(&mut self, cpu: &Compute, step: u64) -> f64 {
        let seed = self.recipe.train.seed;
        let (microbatch, learner) = self.microbatches();
        let num_targets = microbatch(0).num_targets as f64;
        let loss =
            learner.replica.run_microbatches(cpu, seed, step, &microbatch).expect("one worker");
        learner.replica.finish_reduce(cpu).expect("one worker");
        loss / num_targets
    }

    /// Rounding over the longest sums of these models, over the vocabulary.
    fn tolerance(&self) -> Tolerance {
        Tolerance::Close(Dtype::F32, self.recipe.model.vocab)
    }
}

/// Each model family with the batch as one micro-batch and as two, on every device.
fn for_each_case(mut check: impl FnMut(&Compute, Case)) {
    for cpu in computes() {
        for family in ["gpt2", "llama", "qwen", "olmo2", "phi3", "gemma2", "gpt_neox", "bloom"] {
            // Accelerators refuse windows, soft caps and biases of attention, and parts of
            // GPT-NeoX.
            let on_cpus = ["phi3", "gemma2", "gpt_neox", "bloom"].contains(&family);
            if on_cpus && cpu.accelerator().is_some() {
                continue;
            }
            for microbatch_size in [2, 1] {
                check(&cpu, Case::new(&cpu, family, microbatch_size, Dtype::F32));
            }
        }
    }
}

#[test]
fn logits_and_loss_agree_with_pytorch() {
    for_each_case(|cpu, mut case| {
        let (mut logits, mut loss) = (Vec::new(), 0.0);
        for index in 0..case.num_microbatches() {
            let (microbatch, learner) = case.microbatches();
            let num_targets = microbatch(index).num_targets as f64;
            let sum = learner.replica.evaluate(cpu, 1, &|_| microbatch(index)).expect("one worker");
            loss += sum / num_targets;
            logits.extend(learner.replica.logits(cpu).expect("it was copied"));
        }
        case.tolerance().assert("logits", &logits, &case.golden.f32("logits"));
        case.tolerance().assert("loss", &[loss], &case.golden.f64("loss"));
    });
}

#[test]
fn every_gradient_agrees_with_pytorch() {
    for_each_case(|cpu, mut case| {
        let loss = case.run(cpu, 0);
        case.tolerance().assert("loss", &[loss], &case.golden.f64("loss"));
        let replica = &case.learner.replica;
        for (slot, grad) in replica.own_grads() {
            let tensor = case.golden.f32(&format!("grads.{}", slot.name));
            // In the order of memory, which differs for fused rows.
            let mut params = replica.blueprint().owned_params();
            let (_, param) = params.find(|(_, param)| param.name == slot.name).expect("a slot's");
            let mut expected = vec![0.0; tensor.len()];
            param.pick(0, &tensor, &mut expected);
            case.tolerance().assert(&slot.name, grad, &expected);
        }
    });
}

#[test]
fn steps_of_adamw_give_the_losses_of_pytorch() {
    for_each_case(|cpu, mut case| {
        let expected = case.golden.f64("losses");
        assert!([10, 20].contains(&expected.len()));
        assert!(case.tolerance().bound() < 1e-5, "five digits");
        for (step, expected) in expected.iter().enumerate() {
            let step = step as u64;
            let loss = case.run(cpu, step);
            case.tolerance().assert(&format!("loss of step {step}"), &[loss], &[*expected]);
            let learner = &mut case.learner;
            let update = Update { count: step + 1, lr: learner.lr(step), clip: Clip::uniform(1.0) };
            learner.replica.step(cpu, &mut learner.optimizer, &update).expect("one worker");
        }
    });
}

/// The sums of squares of a - b and of b.
fn squares(found: &[f32], truth: &[f32]) -> (f64, f64) {
    let square = |x: f64| x * x;
    let pairs = found.iter().zip(truth);
    let apart = pairs.map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (apart, truth.iter().map(|b| square(f64::from(*b))).sum())
}

/// Compares the whole gradient and every tensor of it with PyTorch's whose residual stream has the
/// type of ours: f32 on a CPU, as under autocast, bf16 on an accelerator. Both round the same
/// operands to bf16, so where a gradient is one matrix product deep, the two errors are samples of
/// one distribution: the norms of n such errors scatter by 1 / sqrt(2 n).
#[test]
fn gradients_in_bf16_are_no_further_from_float64_than_those_of_pytorch() {
    computes().iter().for_each(check_gradients_in_bf16);
}

fn check_gradients_in_bf16(cpu: &Compute) {
    let path = lockstep_harness::golden::folder().join("bf16.txt");
    let text = lockstep_platform::real().files().read_to_string(&path).expect("it is committed");
    let column = if cpu.accelerator().is_some() { "all bfloat16" } else { "autocast bfloat16" };
    let columns = text.lines().next().and_then(|head| head.trim_end_matches(';').split_once(": "));
    let columns = columns.expect("the first line names the columns").1;
    let column = columns.split(", ").position(|name| name == column).expect("it is recorded");
    for family in ["gpt2", "llama"] {
        let theirs: BTreeMap<&str, f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix(family)?.trim().split_once(' '))
            .map(|(name, errors)| (name, errors.split(' ').nth(column).expect("a column")))
            .map(|(name, error)| (name, error.parse().expect("a number")))
            .collect();
        for microbatch_size in [2, 1] {
            let mut case = Case::new(cpu, family, microbatch_size, Dtype::Bf16);
            case.run(cpu, 0);
            let (mut own_squares, mut their_squares) = (0.0_f64, 0.0_f64);
            for (slot, grad) in case.learner.replica.own_grads() {
                let truth = case.golden.f32(&format!("grads.{}", slot.name));
                let ((apart, size), theirs) = (squares(grad, &truth), theirs[slot.name.as_str()]);
                let ours = (apart / size).sqrt();
                own_squares += apart;
                their_squares += theirs * theirs * size;
                assert!(ours > 1e-5, "{}: not computed in bf16", slot.name);
                let most = theirs * (1.0 + 2.0 / (grad.len() as f64).sqrt());
                assert!(ours <= most, "{}: {ours:.2e}, PyTorch {theirs:.2e}", slot.name);
            }
            let ratio = (own_squares / their_squares).sqrt();
            assert!(ratio <= 1.0, "{family}: {ratio} times as far as PyTorch");
        }
    }
}

//! Ten steps of every optimizer against PyTorch; LARS and LAMB against their papers.

use lockstep_config::{Optim, OptimName, Recipe};
use lockstep_harness::golden::Golden;
use lockstep_optim::newton_schulz::Orthogonalizer;
use lockstep_optim::{CHUNK_LEN, Clip, GlobalNorm, Optimizer, Slot, Update, WholeTensors};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::{Cpu, Isa};
use serde_json::Value;

const TENSORS: [&str; 3] = ["a.weight", "b.bias", "c.weight"];
const NUM_STEPS: u64 = 10;

/// The three tensors in two buffers.
fn slots(golden: &Golden) -> Vec<Slot> {
    let slot = |block, tensor: usize, start: usize, first: usize, len: usize| Slot {
        block,
        name: TENSORS[tensor].to_owned(),
        tensor,
        piece: 0,
        range: start..start + len,
        grads: start..start + len,
        first,
        shape: match golden.shape(&format!("start.{}", TENSORS[tensor]))[..] {
            [rows, cols] => [rows, cols],
            _ => [1, len],
        },
        decay: golden.shape(&format!("start.{}", TENSORS[tensor])).len() > 1,
        matrix: match golden.shape(&format!("start.{}", TENSORS[tensor]))[..] {
            [rows, cols] => Some([rows, cols]),
            _ => None,
        },
    };
    let len = |tensor: usize| golden.f32(&format!("start.{}", TENSORS[tensor])).len();
    assert!(len(0) > CHUNK_LEN, "a norm of more than one chunk");
    vec![slot(0, 0, 0, 0, len(0)), slot(0, 1, len(0), 0, len(1)), slot(1, 2, 0, 0, len(2))]
}

fn settings(golden: &Golden, name: OptimName) -> Optim {
    let recorded = golden.metadata("settings");
    let number = |key: &str| recorded[key].as_f64().expect("a number");
    Optim {
        name,
        weight_decay: number("weight_decay"),
        momentum: number("momentum"),
        beta1: number("beta1"),
        beta2: number("beta2"),
        eps: number("eps"),
        trust_coefficient: number("trust"),
        warmup_steps: 0,
        ..Recipe::default().optim
    }
}

/// The recorded values of one kind, in the two buffers.
fn buffers(golden: &Golden, kind: &str) -> [Vec<f32>; 2] {
    let values = |tensor: &str| golden.f32(&format!("{kind}.{tensor}"));
    [[values(TENSORS[0]), values(TENSORS[1])].concat(), values(TENSORS[2])]
}

/// Orthogonalises every matrix.
fn orthogonalize(cpu: &Cpu, slots: &[Slot], grads: &mut [Vec<f32>; 2]) {
    let shapes = slots.iter().filter_map(|slot| slot.matrix);
    let mut work = Orthogonalizer::new(Precision::F32, shapes, None).expect("memory");
    for slot in slots {
        let Some(shape) = slot.matrix else { continue };
        let values = &mut grads[slot.block][slot.grads.clone()];
        work.matrix_mut()[..values.len()].copy_from_slice(values);
        work.run(cpu, shape).expect("the CPU has products");
        values.copy_from_slice(&work.matrix_mut()[..values.len()]);
    }
}

/// Parameters after ten steps.
fn train(golden: &Golden, name: OptimName, rate: f64) -> [Vec<f32>; 2] {
    let cpu = Cpu::single(Isa::detect());
    let slots = slots(golden);
    let mut optimizer = Optimizer::new(&settings(golden, name), &slots);
    let mut norm = GlobalNorm::new(&slots);
    let mut params = buffers(golden, "start");
    optimizer.start_at(|slot| &params[slot.block][slot.range.clone()]);
    let (slope, goal) = (buffers(golden, "slope"), buffers(golden, "goal"));
    for step in 0..NUM_STEPS {
        let lr = rate / (1.0 + step as f64 / 5.0);
        let update = Update { count: step + 1, lr, clip: Clip::uniform(1.0) };
        let grad = |block: usize| {
            let elements = params[block].iter().zip(&slope[block]).zip(&goal[block]);
            elements.map(|((p, slope), goal)| slope * (p - goal)).collect::<Vec<f32>>()
        };
        let mut grads = [grad(0), grad(1)];
        for block in 0..2 {
            let grads = &mut grads[block];
            optimizer.prepare_block(&cpu, &update, block, &params[block], grads);
        }
        match optimizer.inputs().whole {
            WholeTensors::None => {}
            WholeTensors::HiddenMatrices => orthogonalize(&cpu, &slots, &mut grads),
            WholeTensors::All => {
                for slot in &slots {
                    let (grads, mut sums) = (&mut grads[slot.block], vec![0.0; 1000]);
                    let grads = &mut grads[slot.grads.clone()];
                    optimizer.factored_direction(&cpu, &update, slot.tensor, grads, &mut sums);
                }
            }
        }
        let mut measure = |buffers: &[Vec<f32>; 2]| {
            norm.chunk_sums(&cpu, |slot| &buffers[slot.block][slot.range.clone()]);
            let mut norms = vec![0.0; TENSORS.len()];
            norm.by_tensor().for_each(|(tensor, sum)| norms[tensor] += sum);
            norms.iter().map(|norm: &f64| norm.sqrt()).collect()
        };
        let norms = [measure(&params), measure(&grads)];
        let [of_params, of_steps] = norms;
        (optimizer.norms_mut().params, optimizer.norms_mut().steps) = (of_params, of_steps);
        for block in 0..2 {
            optimizer.step_block(&cpu, &update, block, &mut params[block], &grads[block]);
        }
    }
    optimizer.swap_averages(|slot, averages| {
        averages.swap_with_slice(&mut params[slot.block][slot.range.clone()]);
    });
    params
}

#[test]
fn ten_steps_of_every_optimizer_agree_to_five_digits() {
    let golden = Golden::load(&lockstep_platform::real(), "optimizers");
    let rates = golden.metadata("rates");
    // Where rounding decides between two codes, moments of eight bits part from any recording.
    assert_eq!(rates.len(), OptimName::NAMES.len() - 1, "every rule but adamw-8bit is recorded");
    for (rule, rate) in &rates {
        let name = OptimName::from_name(rule).expect("a rule of ours");
        let found = train(&golden, name, Value::as_f64(rate).expect("a number")).concat();
        let expected = buffers(&golden, rule).concat();
        let start = buffers(&golden, "start").concat();
        // Five digits of the distance covered, which is less than the parameters themselves.
        let far =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let (error, covered) = (far(&found, &expected), far(&expected, &start));
        assert!(covered > 0.05, "{rule} did not move");
        assert!(error < 1e-5 * covered, "{rule}: off by {error:e} after a distance of {covered}");
    }
}

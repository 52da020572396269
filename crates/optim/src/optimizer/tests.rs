//! Every rule against its formula in `f64`, with gaps, parameter groups, restored and offloaded
//! state.

use super::*;
use crate::clip::Clip;
use lockstep_config::{Group, Recipe};
use lockstep_tensor::Isa;

fn settings(name: OptimName) -> Optim {
    Optim {
        name,
        weight_decay: 0.01,
        clip: 0.0,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        momentum: 0.8,
        trust_coefficient: 0.02,
        warmup_steps: 0,
        ..Recipe::default().optim
    }
}

fn group(pattern: &str) -> Group {
    Group {
        pattern: pattern.to_owned(),
        lr_scale: 1.0,
        weight_decay: None,
        clip: None,
        frozen: false,
        freeze_after: None,
        unfreeze_at: None,
    }
}

/// Block 0 has a gap, as a tied embedding leaves one, and mixed decay; block 1 owns nothing.
fn slots() -> Vec<Slot> {
    let slot = |block, name: &str, tensor, range: Range<usize>, decay| Slot {
        block,
        name: name.to_string(),
        tensor,
        piece: 0,
        grads: range.clone(),
        shape: [1, range.len()],
        range,
        first: 0,
        decay,
        matrix: None,
    };
    vec![
        slot(0, "a", 0, 0..3, true),
        slot(0, "b", 1, 3..5, false),
        slot(0, "c", 2, 7..9, true),
        slot(2, "d", 3, 0..2, true),
    ]
}

fn buffers(scale: f32) -> Vec<Vec<f32>> {
    [9, 4, 2]
        .iter()
        .map(|len| (0..*len).map(|i| scale * (1.0 + (i * 5 % 7) as f32)).collect())
        .collect()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt()
}

/// An optimizer of the parameters in `buffers(1.0)`.
fn fresh(settings: &Optim) -> Optimizer {
    let (start, mut optimizer) = (buffers(1.0), Optimizer::new(settings, &slots()));
    optimizer.start_at(|slot| &start[slot.block][slot.range.clone()]);
    optimizer
}

fn run(optimizer: &mut Optimizer, params: &mut [Vec<f32>], counts: std::ops::Range<u64>) {
    let cpu = Cpu::single(Isa::detect());
    for count in counts {
        let update = Update { count, lr: 0.1 / count as f64, clip: Clip::uniform(0.5) };
        let mut grads = buffers(0.5);
        for (block, params) in params.iter().enumerate() {
            optimizer.prepare_block(&cpu, &update, block, params, &mut grads[block]);
        }
        let measure = |buffers: &[Vec<f32>]| {
            let slots = slots();
            slots.iter().map(|s| norm(&buffers[s.block][s.range.clone()])).collect::<Vec<_>>()
        };
        *optimizer.norms_mut() = TensorNorms { params: measure(params), steps: measure(&grads) };
        for (block, params) in params.iter_mut().enumerate() {
            optimizer.step_block(&cpu, &update, block, params, &grads[block]);
        }
    }
}

/// The rules in `f64` on one tensor at a time; the gradient is half of the first parameters, and
/// half of that by clipping.
fn by_hand(s: &Optim, p: &[f32], is_matrix: bool, num_steps: u64) -> Vec<f64> {
    let decay = if is_matrix { s.weight_decay } else { 0.0 };
    let g: Vec<f64> = p.iter().map(|p| 0.25 * f64::from(*p)).collect();
    let mut p: Vec<f64> = p.iter().map(|p| f64::from(*p)).collect();
    let (mut m, mut v) = (vec![0.0; p.len()], vec![0.0; p.len()]);
    let (mut x, mut z) = (p.clone(), p.clone());
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    for count in 1..=num_steps {
        let lr = 0.1 / count as f64;
        let local = if is_matrix {
            s.trust_coefficient * norm(&p) / (norm(&g) + decay * norm(&p))
        } else {
            1.0
        };
        let (bias1, bias2) = (1.0 - s.beta1.powi(count as i32), 1.0 - s.beta2.powi(count as i32));
        let mut u = vec![0.0; p.len()];
        for i in 0..p.len() {
            let l2 = g[i] + decay * p[i];
            let moment = if s.name == OptimName::Adam { l2 } else { g[i] };
            match s.name {
                OptimName::Sgd => u[i] = l2,
                OptimName::Momentum => {
                    m[i] = s.momentum * m[i] + l2;
                    u[i] = m[i];
                }
                OptimName::Nesterov => {
                    m[i] = s.momentum * m[i] + l2;
                    u[i] = l2 + s.momentum * m[i];
                }
                OptimName::Lars => {
                    m[i] = s.momentum * m[i] + lr * local * l2;
                    u[i] = m[i] / lr;
                }
                OptimName::Lion => {
                    let c = s.beta1 * m[i] + (1.0 - s.beta1) * g[i];
                    u[i] = c.signum() + decay * p[i];
                    m[i] = s.beta2 * m[i] + (1.0 - s.beta2) * g[i];
                }
                OptimName::Muon | OptimName::Adafactor | OptimName::AdamW8Bit => {
                    unreachable!("tested apart")
                }
                OptimName::ScheduleFreeAdamW => {
                    v[i] = s.beta2 * v[i] + (1.0 - s.beta2) * g[i] * g[i];
                    z[i] -= lr * (g[i] / ((v[i] / bias2).sqrt() + s.eps) + decay * p[i]);
                    x[i] += (z[i] - x[i]) / count as f64;
                    u[i] = (p[i] - (1.0 - s.beta1) * z[i] - s.beta1 * x[i]) / lr;
                }
                OptimName::Adam | OptimName::AdamW | OptimName::Lamb => {
                    m[i] = s.beta1 * m[i] + (1.0 - s.beta1) * moment;
                    v[i] = s.beta2 * v[i] + (1.0 - s.beta2) * moment * moment;
                    u[i] = m[i] / bias1 / ((v[i] / bias2).sqrt() + s.eps);
                    let outside = if s.name == OptimName::Adam { 0.0 } else { decay };
                    u[i] += outside * p[i];
                }
            }
        }
        let is_lamb = s.name == OptimName::Lamb && is_matrix;
        let ratio = if is_lamb { norm(&p) / norm(&u) } else { 1.0 };
        p.iter_mut().zip(&u).for_each(|(p, u)| *p -= lr * ratio * u);
    }
    p
}

const RULES: [OptimName; 9] = [
    OptimName::Sgd,
    OptimName::Momentum,
    OptimName::Nesterov,
    OptimName::Adam,
    OptimName::AdamW,
    OptimName::Lars,
    OptimName::Lamb,
    OptimName::Lion,
    OptimName::ScheduleFreeAdamW,
];

#[test]
fn each_rule_updates_its_slots_and_nothing_else() {
    for name in RULES {
        let mut optimizer = fresh(&settings(name));
        let (before, mut params) = (buffers(1.0), buffers(1.0));
        run(&mut optimizer, &mut params, 1..4);
        let mut expected = before.clone();
        for slot in slots() {
            let p = &before[slot.block][slot.range.clone()];
            let stepped = by_hand(&settings(name), p, slot.decay, 3);
            for (expected, p) in expected[slot.block][slot.range].iter_mut().zip(stepped) {
                *expected = p as f32;
            }
        }
        for (params, expected) in params.iter().flatten().zip(expected.iter().flatten()) {
            let error = (params - expected).abs();
            assert!(error < 1e-6 * expected.abs(), "{name}: {params} but {expected}");
        }
    }
}

#[test]
fn a_group_has_its_own_rate_and_decay_and_the_first_match_wins() {
    let groups = vec![
        Group { lr_scale: 0.5, weight_decay: Some(0.25), ..group("b") },
        Group { lr_scale: 0.0, ..group("?") },
    ];
    let grouped = Optim { groups, ..settings(OptimName::AdamW) };
    let mut params = buffers(1.0);
    run(&mut Optimizer::new(&grouped, &slots()), &mut params, 1..2);
    let before = buffers(1.0);
    assert_eq!(params[0][0].to_bits(), before[0][0].to_bits(), "a rate of zero moves nothing");
    // The first step of Adam is the rate, whatever the gradient; decay comes on top.
    let expected = before[0][3] * (1.0 - 0.05 * 0.25) - 0.05;
    assert!((params[0][3] - expected).abs() < 1e-6, "{} but {expected}", params[0][3]);
}

#[test]
fn bias_correction_of_unfrozen_parameters_starts_at_their_first_step() {
    let unfrozen = Group { unfreeze_at: Some(100), ..group("*") };
    let settings = Optim { groups: vec![unfrozen], ..settings(OptimName::AdamW) };
    let mut optimizer = Optimizer::at_step(&settings, &slots(), 100);
    let (cpu, mut params) = (Cpu::single(Isa::detect()), buffers(1.0));
    let update = Update { count: 101, lr: 0.1, clip: Clip::uniform(1.0) };
    optimizer.step_block(&cpu, &update, 2, &mut params[2], &[1.0, -1.0]);
    let moved: Vec<f32> = params[2].iter().zip(&buffers(1.0)[2]).map(|(a, b)| a - b).collect();
    let decay = 0.1 * 0.01;
    for (moved, expected) in moved.iter().zip([-0.1 - decay, 0.1 - 6.0 * decay]) {
        assert!((moved - expected).abs() < 1e-6, "{moved} but {expected}");
    }
}

#[test]
fn restored_state_continues_with_equal_bits() {
    for name in RULES {
        let mut optimizer = fresh(&settings(name));
        let mut params = buffers(1.0);
        run(&mut optimizer, &mut params, 1..3);
        let mut restored = Optimizer::new(&settings(name), &slots());
        restored.copy_state_from(&optimizer);
        let mut resumed = params.clone();
        run(&mut optimizer, &mut params, 3..5);
        run(&mut restored, &mut resumed, 3..5);
        let bits = |params: Vec<Vec<f32>>| {
            params.iter().flatten().map(|p| p.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(params), bits(resumed), "{name}");
    }
}

#[test]
fn state_is_named_after_parameters_and_has_their_length() {
    let optimizer = Optimizer::new(&settings(OptimName::AdamW), &slots());
    assert_eq!(optimizer.state_names(), ["m", "v"]);
    for (name, len) in [("a", 3), ("b", 2), ("c", 2), ("d", 2)] {
        for kind in 0..2 {
            assert_eq!(optimizer.state(name, 0, kind).map(<[f32]>::len), Some(len), "{name}");
        }
    }
    assert_eq!(optimizer.resident_len(), 2 * 9);
    assert_eq!(Optimizer::new(&settings(OptimName::Sgd), &slots()).resident_len(), 0);
}

#[test]
fn averages_are_exchanged_with_the_parameters_and_back() {
    let mut optimizer = fresh(&settings(OptimName::ScheduleFreeAdamW));
    let mut params = buffers(1.0);
    run(&mut optimizer, &mut params, 1..4);
    let trained = params.clone();
    let mut swap = |params: &mut [Vec<f32>]| {
        optimizer.swap_averages(|slot, averages| {
            averages.swap_with_slice(&mut params[slot.block][slot.range.clone()]);
        });
    };
    swap(&mut params);
    for Slot { name, block, range, .. } in slots() {
        let [average, point] = [&params, &trained].map(|params| params[block][range.start]);
        assert!(average > point, "{name}: the average lags behind the descent");
    }
    swap(&mut params);
    assert_eq!(params, trained);
    let mut plain = fresh(&settings(OptimName::AdamW));
    plain.swap_averages(|slot, _| panic!("{} has no average", slot.name));
    assert!(!plain.has_averages());
}

#[test]
fn unknown_state_is_not_found() {
    let mut optimizer = Optimizer::new(&settings(OptimName::Momentum), &slots());
    assert!(optimizer.state_mut("a", 0, 0).is_some());
    assert!(optimizer.state_mut("a", 1, 0).is_none());
    assert!(optimizer.state_mut("e", 0, 0).is_none());
}

#[test]
fn a_tensor_of_zeros_has_a_trust_ratio_of_one() {
    for name in [OptimName::Lars, OptimName::Lamb] {
        let mut params = vec![vec![0.0; 9], vec![0.0; 4], vec![0.0; 2]];
        run(&mut Optimizer::new(&settings(name), &slots()), &mut params, 1..2);
        assert!(params[2].iter().all(|p| *p < 0.0), "{name}: {params:?}");
    }
}

#[test]
fn offloaded_state_gives_equal_bits() {
    let world = lockstep_platform::real();
    let scratch = lockstep_platform::ScratchDir::new(&world, "state").expect("a folder");
    // Pieces end inside of a span; a span ends inside of a piece; some fit as they are.
    let lens = [PIECE_LEN + 5, 3, 2 * PIECE_LEN - 1, PIECE_LEN / 2];
    let mut at = 0;
    let slot = |(index, len): (usize, usize)| {
        let range = at..at + len;
        at += len;
        let (name, grads, decay) = (index.to_string(), range.clone(), index % 2 == 0);
        let (tensor, matrix) = (index, None);
        let shape = [1, range.len()];
        Slot { block: 0, name, tensor, piece: 0, range, grads, first: 0, shape, decay, matrix }
    };
    let slots: Vec<Slot> = lens.into_iter().enumerate().map(slot).collect();
    let cpu = Cpu::single(Isa::detect());
    for name in [OptimName::AdamW, OptimName::Momentum, OptimName::Lamb] {
        let settings = settings(name);
        let make = |lens: &[usize]| world.files().paged(scratch.path(), lens);
        let offloaded = Optimizer::in_file(&settings, &slots, 0, make).expect("room");
        assert_eq!(offloaded.resident_len(), offloaded.state_names().len() * PIECE_LEN);
        let mut results = [Optimizer::new(&settings, &slots), offloaded].map(|mut optimizer| {
            let mut params: Vec<f32> = (0..at).map(|i| (i % 101) as f32 - 50.0).collect();
            for count in 1..3 {
                let update = Update { count, lr: 0.1, clip: Clip::uniform(0.5) };
                let mut grads: Vec<f32> = (0..at).map(|i| (i % 89) as f32 - 44.0).collect();
                optimizer.read_ahead();
                optimizer.prepare_block(&cpu, &update, 0, &params, &mut grads);
                let ones = vec![1.0; slots.len()];
                *optimizer.norms_mut() = TensorNorms { params: ones.clone(), steps: ones };
                optimizer.step_block(&cpu, &update, 0, &mut params, &grads);
                optimizer.check().expect("a disk that works");
            }
            (params, optimizer)
        });
        let [(in_memory, one), (from_file, other)] = &mut results;
        assert!(in_memory == from_file, "{name}");
        for slot in &slots {
            for kind in 0..one.state_names().len() {
                let state = |of: &Optimizer| of.state(&slot.name, 0, kind).map(<[f32]>::to_vec);
                assert!(state(one) == state(other), "{name}, {}", slot.name);
            }
        }
    }
}

/// A disk that fails to read.
#[derive(Debug)]
struct Broken(Vec<f32>);

impl Paged for Broken {
    fn floats(&self) -> &[f32] {
        &self.0
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }

    fn read_ahead(&self, _: Range<usize>) {}

    fn load(&self, _: Range<usize>) -> Result<(), FileError> {
        let (action, path) = (lockstep_platform::FileAction::Read, std::path::Path::new("disk"));
        Err(FileError::new(action, path, &std::io::Error::other("input/output error")))
    }

    fn release(&self, _: Range<usize>) {}

    fn release_all(&self) {}
}

#[test]
fn a_disk_error_skips_the_step_and_is_reported() {
    let make = |lens: &[usize]| {
        let broken = |len: &usize| Box::new(Broken(vec![0.0; *len])) as Box<dyn Paged>;
        Ok(lens.iter().map(broken).collect())
    };
    let settings = settings(OptimName::AdamW);
    let mut optimizer = Optimizer::in_file(&settings, &slots(), 0, make).expect("room");
    optimizer.check().expect("nothing was read yet");
    let mut params = buffers(1.0);
    run(&mut optimizer, &mut params, 1..2);
    assert_eq!(params, buffers(1.0), "nothing was stepped");
    let error = optimizer.check().expect_err("it did not work");
    assert_eq!(error.to_string(), "cannot read disk: input/output error");
}

/// The first step of Adam is the rate, whatever the gradient; that of SGD is the rate times it.
#[test]
fn rates_of_a_wide_model_follow_mup_and_decay_stays_that_of_the_base() {
    let mut slots = slots();
    slots[0].matrix = Some([1, 3]);
    let before = buffers(1.0);
    for (name, [hidden, other]) in
        [(OptimName::AdamW, [0.25, 1.0]), (OptimName::Sgd, [1.0, 4.0]), (OptimName::Lamb, [1.0; 2])]
    {
        let wide = Optim { width_ratio: 4.0, ..settings(name) };
        let rule = rule_of(name).describe();
        let options = |slot: &Slot| GroupOptions::of(&wide, &rule, slot, 0);
        let [matrix, vector, table] = [0, 1, 2].map(|slot| options(&slots[slot]));
        let scales = [&matrix, &vector, &table].map(|options| options.lr_scale.to_bits());
        assert_eq!(scales, [hidden, other, other].map(f64::to_bits), "{name}");
        for decayed in [&matrix, &table] {
            let product = decayed.lr_scale * decayed.weight_decay;
            assert_eq!(product.to_bits(), 0.01_f64.to_bits(), "{name}");
        }
        assert_eq!(vector.weight_decay.to_bits(), 0.0_f64.to_bits());
    }
    let wide = Optim { width_ratio: 4.0, weight_decay: 0.0, ..settings(OptimName::AdamW) };
    let mut params = before.clone();
    run(&mut Optimizer::new(&wide, &slots), &mut params, 1..2);
    let moved = |at: usize| (params[0][at] - before[0][at]).abs();
    assert!((moved(0) - 0.025).abs() < 1e-6 && (moved(7) - 0.1).abs() < 1e-6);
}

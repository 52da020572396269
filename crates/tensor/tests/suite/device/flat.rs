//! Sums, conversions, checks and optimizer steps on flat buffers: bits of the CPU on every device.

use super::{Case, bits, cases, cpu, none, on_every_device};
use crate::common::numbers;
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::device::{Dtype, Momentum, Rates, Rule, View, ViewMut};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::lion::LionStep;
use lockstep_tensor::reduce::SQUARES_CHUNK;
use lockstep_tensor::schedule_free::ScheduleFreeStep;
use lockstep_tensor::{convert, lamb, muon, reduce, reference};

const LEN: usize = 5003;

#[test]
fn sums_match_the_cpu_to_the_bit() {
    let (a, b) = (numbers(1, LEN), numbers(2, LEN));
    on_every_device(
        |case| {
            let (left, right) = (case.upload(&a), case.upload(&b));
            let (mut sum, mut target) = (case.poisoned(LEN), case.upload(&a));
            case.device.add(left.view(), right.view(), sum.view_mut()).unwrap();
            case.device.add_assign(target.view_mut(), right.view()).unwrap();
            vec![case.download(&sum), case.download(&target)]
        },
        |case, got| {
            let mut expected = vec![0.0; LEN];
            reduce::add(cpu(), &case.rounded(&a), &case.rounded(&b), &mut expected);
            let expected = case.rounded(&expected);
            assert_eq!(bits(&got[0]), bits(&expected), "{}", case.label());
            assert_eq!(bits(&got[1]), bits(&expected), "{}", case.label());
        },
    );
}

#[test]
fn sums_of_squares_match_the_cpu_to_the_bit() {
    // More tensors than a launch takes, aligned and not, with whole and broken chunks, and empty.
    let of_tensor = [1, SQUARES_CHUNK, 0, 3 * SQUARES_CHUNK + 77, 20, 130];
    let lens: Vec<_> = of_tensor.into_iter().chain([5; 130]).collect();
    let x = numbers(3, lens.iter().sum());
    for case in cases() {
        let (input, rounded) = (case.upload(&x), case.rounded(&x));
        let chunks = lens.iter().map(|len| len.div_ceil(SQUARES_CHUNK)).sum();
        let mut out = case.device.allocate(Dtype::F64, chunks).unwrap();
        let (mut tensors, mut expected, mut start) = (Vec::new(), Vec::new(), 0);
        for len in &lens {
            tensors.push(input.view().range(start..start + len));
            let mut sums = vec![0.0; len.div_ceil(SQUARES_CHUNK)];
            reduce::sum_squares_chunks(cpu(), &rounded[start..start + len], &mut sums);
            expected.extend(sums);
            start += len;
        }
        case.device.sum_squares(&tensors, out.view_mut()).unwrap();
        let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&case.download_f64(&out)), bits(&expected), "{}", case.label());
    }
}

#[test]
fn the_first_non_finite_element_is_found() {
    for case in cases() {
        let mut x = numbers(4, LEN);
        assert_eq!(case.device.first_non_finite(case.upload(&x).view()).unwrap(), None);
        (x[4001], x[17], x[5000]) = (f32::INFINITY, f32::NAN, f32::NAN);
        assert_eq!(case.device.first_non_finite(case.upload(&x).view()).unwrap(), Some(17));
        assert_eq!(
            case.device.first_non_finite(case.upload(&x).view().range(18..LEN)).unwrap(),
            Some(3983)
        );
    }
}

#[test]
fn conversions_round_and_count_like_the_cpu() {
    // Overflows of f16, underflows of f16 and of bf16's smallest, zeros, infinities.
    let mut x = numbers(5, LEN);
    for (i, special) in [7e4, -1e-9, 0.0, f32::INFINITY, 1e-7, 3.4e38].into_iter().enumerate() {
        x[97 * i] = special;
    }
    for case in cases().into_iter().filter(|case| case.dtype == Dtype::F32) {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let run = |device: Case| {
                let (from, mut to) =
                    (device.upload_f32(&x), device.device.allocate(dtype, LEN).unwrap());
                let mut errors = device.device.allocate(Dtype::U64, 2).unwrap();
                device.device.convert(from.view(), to.view_mut(), errors.view_mut()).unwrap();
                let mut back = device.poisoned_f32(LEN);
                device.device.convert(to.view(), back.view_mut(), none()).unwrap();
                let mut counts = [0u64; 2];
                device.device.copy(errors.view(), ViewMut::of(&mut counts)).unwrap();
                assert_eq!(bits(&device.download(&to)), bits(&device.download(&back)));
                (bits(&device.download(&to)), counts)
            };
            let on_cpu = Case { device: cpu(), dtype: Dtype::F32, is_cpu: true };
            let (got, expected) = (run(case), run(on_cpu));
            assert_eq!(got, expected, "{}", case.label());
            assert!(expected.1[0] > 0, "an overflow is counted");
        }
    }
}

#[test]
fn scaling_matches_the_cpu() {
    let x = numbers(6, LEN);
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        for case in cases().into_iter().filter(|case| case.dtype == Dtype::F32) {
            let mut scaled = case.upload_f32(&x);
            let mut errors = case.device.allocate(Dtype::U64, 2).unwrap();
            let (target, counts) = (scaled.view_mut(), errors.view_mut());
            case.device.scale(target, 1e-6, precision, counts).unwrap();
            let mut expected = x.clone();
            let found = convert::scale(cpu(), &mut expected, 1e-6, precision);
            assert_eq!(bits(&case.download(&scaled)), bits(&expected), "{}", case.label());
            let mut counts = [0u64; 2];
            case.device.copy(errors.view(), ViewMut::of(&mut counts)).unwrap();
            assert_eq!(counts, [found.num_non_finite, found.num_zeroed], "{}", case.label());
        }
    }
}

fn adam_step() -> AdamStep {
    AdamStep {
        lr: 3e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        bias1: 1.0 - 0.9 * 0.9,
        bias2: 1.0 - 0.95 * 0.95,
        grad_scale: 0.75,
    }
}

fn lion_step() -> LionStep {
    LionStep { lr: 3e-3, beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_scale: 0.75 }
}

fn schedule_free_step() -> ScheduleFreeStep {
    ScheduleFreeStep {
        lr: 3e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        bias2: 1.0 - 0.95 * 0.95,
        averaging: 0.3,
        grad_scale: 0.75,
    }
}

fn rules() -> Vec<Rule> {
    let rates = Rates { lr: 0.05, weight_decay: 0.01, grad_scale: 0.5 };
    let momentum = |variant| Rule::Momentum { variant, mu: 0.9, rates };
    vec![
        Rule::Sgd(rates),
        momentum(Momentum::Plain),
        momentum(Momentum::Nesterov),
        momentum(Momentum::Lars),
        Rule::Adam(adam_step()),
        Rule::AdamW(adam_step()),
        Rule::Lion(lion_step()),
        Rule::ScheduleFree(schedule_free_step()),
    ]
}

/// Parameters, rounded copy and state after two steps.
fn steps(case: Case, rule: &Rule) -> Vec<Vec<f32>> {
    let (mut p, g) = (case.upload_f32(&numbers(7, LEN)), case.upload_f32(&numbers(8, LEN)));
    let [mut one, mut two, mut three] = [(); 3].map(|()| case.upload_f32(&vec![0.0; LEN]));
    let mut copy = case.device.allocate(Dtype::Bf16, LEN).unwrap();
    for _ in 0..2 {
        let state = [one.view_mut(), two.view_mut(), three.view_mut()];
        let (p, copy) = (p.view_mut(), copy.view_mut());
        case.device.optimizer_step(rule, p, g.view(), state, copy).unwrap();
    }
    [&p, &copy, &one, &two, &three].map(|buffer| case.download(buffer)).to_vec()
}

#[test]
fn optimizer_steps_match_the_cpu_to_the_bit() {
    let on_cpu = Case { device: cpu(), dtype: Dtype::F32, is_cpu: true };
    for rule in rules() {
        let expected = steps(on_cpu, &rule);
        for case in cases() {
            let got = steps(case, &rule);
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(bits(got), bits(expected), "{}: {rule:?}, {i}", case.label());
            }
        }
    }
}

#[test]
fn optimizer_steps_of_the_cpu_match_the_oracle() {
    let on_cpu = Case { device: cpu(), dtype: Dtype::F32, is_cpu: true };
    let wide = crate::common::wide;
    let (mut p, g) = (wide(&numbers(7, LEN)), wide(&numbers(8, LEN)));
    let (mut m, mut v) = (vec![0.0; LEN], vec![0.0; LEN]);
    for _ in 0..2 {
        reference::adamw::step(&adam_step(), &mut p, &g, &mut m, &mut v);
    }
    on_cpu.assert_close("p", &steps(on_cpu, &Rule::AdamW(adam_step()))[0], &p, 2);
}

#[test]
fn directions_of_lamb_match_the_cpu_to_the_bit() {
    let p = numbers(9, LEN);
    let [mut g, mut m, mut v] = [numbers(10, LEN), vec![0.1; LEN], vec![0.2; LEN]];
    lamb::direction(cpu(), &adam_step(), &p, &mut g, &mut m, &mut v);
    on_every_device(
        |case| {
            let (p, mut g) = (case.upload_f32(&p), case.upload_f32(&numbers(10, LEN)));
            let (mut m, mut v) =
                (case.upload_f32(&vec![0.1; LEN]), case.upload_f32(&vec![0.2; LEN]));
            let moments = [m.view_mut(), v.view_mut()];
            case.device.lamb_direction(&adam_step(), p.view(), g.view_mut(), moments).unwrap();
            [&g, &m, &v].map(|buffer| case.download(buffer)).to_vec()
        },
        |case, got| {
            for (got, expected) in got.iter().zip([&g, &m, &v]) {
                assert_eq!(bits(got), bits(expected), "{}", case.label());
            }
        },
    );
}

#[test]
fn directions_of_muon_match_the_cpu_to_the_bit() {
    let [mut g, mut m] = [numbers(11, LEN), vec![0.1; LEN]];
    muon::direction(cpu(), 0.95, 0.75, &mut g, &mut m);
    on_every_device(
        |case| {
            let (mut g, mut m) =
                (case.upload_f32(&numbers(11, LEN)), case.upload_f32(&vec![0.1; LEN]));
            case.device.muon_direction(0.95, 0.75, g.view_mut(), m.view_mut()).unwrap();
            [&g, &m].map(|buffer| case.download(buffer)).to_vec()
        },
        |case, got| {
            for (got, expected) in got.iter().zip([&g, &m]) {
                assert_eq!(bits(got), bits(expected), "{}", case.label());
            }
        },
    );
}

#[test]
#[should_panic(expected = "as many")]
fn buffers_of_two_lengths_are_refused() {
    let mut to = [0u32; 2];
    let from = View::of(&[0u32; 3]);
    let _ = lockstep_tensor::device::Memory::copy(cpu(), from, ViewMut::of(&mut to));
}

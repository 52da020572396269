//! Accuracy in ulps against the standard library's `f64`, special values, and equal bits.

use lockstep_tensor::Isa;
use lockstep_tensor::math::{erf, exp, ln, scalar, sigmoid, sigmoid_and_slope, tanh};
use lockstep_tensor::simd::{Kernel, Simd, VECTOR_LEN, dispatch};

/// Applies `f` to every vector of `x` and writes `y`; the tail goes through the same operations.
#[inline(always)]
fn map<S: Simd>(s: S, x: &[f32], y: &mut [f32], f: impl Fn(S::V) -> S::V) {
    assert_eq!(x.len(), y.len());
    let (x_body, x_tail) = x.as_chunks::<VECTOR_LEN>();
    let (y_body, y_tail) = y.as_chunks_mut::<VECTOR_LEN>();
    for (x, y) in x_body.iter().zip(y_body) {
        s.store(f(s.load(x)), y);
    }
    if !x_tail.is_empty() {
        s.store_partial(f(s.load_partial(x_tail)), y_tail);
    }
}

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    Ln,
    Tanh,
    Sigmoid,
    Slope,
    Erf,
}

const ALL: [Function; 6] = [
    Function::Exp,
    Function::Ln,
    Function::Tanh,
    Function::Sigmoid,
    Function::Slope,
    Function::Erf,
];

impl Function {
    /// Reference value in `f64`.
    fn exact(self, x: f64) -> f64 {
        match self {
            Self::Exp => x.exp(),
            Self::Ln => x.ln(),
            Self::Tanh => x.tanh(),
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Slope => 1.0 / ((1.0 + (-x).exp()) * (1.0 + x.exp())),
            Self::Erf => exact_erf(x),
        }
    }

    fn apply(self, isa: Isa, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        dispatch(isa, Apply { function: self, x, y: &mut y });
        y
    }
}

struct Apply<'a> {
    function: Function,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.function {
            Function::Exp => map(s, self.x, self.y, |x| exp(s, x)),
            Function::Ln => map(s, self.x, self.y, |x| ln(s, x)),
            Function::Tanh => map(s, self.x, self.y, |x| tanh(s, x)),
            Function::Sigmoid => map(s, self.x, self.y, |x| sigmoid(s, x)),
            Function::Slope => map(s, self.x, self.y, |x| sigmoid_and_slope(s, x).1),
            Function::Erf => map(s, self.x, self.y, |x| erf(s, x)),
        }
    }
}

/// A series of positive terms, so nothing cancels.
fn exact_erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return 1f64.copysign(x);
    }
    let (mut sum, mut term, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

/// The distance in units of the last place of the exact value.
fn ulps(got: f32, exact: f64) -> f64 {
    let magnitude = (exact.abs() as f32).clamp(f32::MIN_POSITIVE, f32::MAX);
    let place = f64::from(f32::from_bits(magnitude.to_bits() & 0x7f80_0000)) / 8_388_608.0;
    (f64::from(got) - exact).abs() / place
}

fn ulps_f64(got: f64, expected: f64) -> u64 {
    if got.to_bits() == expected.to_bits() {
        return 0;
    }
    assert!(got.is_sign_positive() == expected.is_sign_positive(), "{got} and {expected}");
    got.to_bits().abs_diff(expected.to_bits())
}

/// Every `stride`-th number between two of the same sign, by bit pattern: dense in every binade.
fn floats(from: f32, to: f32, stride: usize) -> impl Iterator<Item = f32> {
    let (a, b) = (from.to_bits(), to.to_bits());
    (a.min(b)..=a.max(b)).step_by(stride).map(f32::from_bits)
}

fn both_signs(limit: f32, stride: usize) -> Vec<f32> {
    floats(1e-30, limit, stride).flat_map(|x| [x, -x]).collect()
}

#[expect(clippy::print_stdout, reason = "--nocapture prints the measured accuracy")]
fn worst_ulps(function: Function, x: &[f32]) -> f64 {
    let y = function.apply(Isa::detect(), x);
    let mut worst = (0.0, 0.0);
    for (&x, &y) in x.iter().zip(&y) {
        let distance = ulps(y, function.exact(f64::from(x)));
        assert!(!distance.is_nan(), "{function:?}({x}) = {y}");
        if distance > worst.0 {
            worst = (distance, x);
        }
    }
    println!("{function:?}: {:.3} ulp at {}", worst.0, worst.1);
    worst.0
}

#[test]
fn exp_is_within_one_ulp_for_normal_results() {
    let mut x: Vec<f32> = floats(1e-30, 88.7228, 997).collect();
    x.extend(floats(-1e-30, -86.98, 997));
    assert!(worst_ulps(Function::Exp, &x) <= 1.0);
}

#[test]
fn ln_is_within_one_ulp_for_all_positive_numbers() {
    let mut x: Vec<f32> = floats(f32::from_bits(1), f32::MAX, 1009).collect();
    x.extend(floats(0.9, 1.1, 1));
    assert!(worst_ulps(Function::Ln, &x) <= 1.0);
}

#[test]
fn tanh_and_sigmoid_are_within_three_ulps_and_erf_within_one() {
    assert!(worst_ulps(Function::Tanh, &both_signs(100.0, 997)) <= 3.0);
    assert!(worst_ulps(Function::Sigmoid, &both_signs(86.98, 997)) <= 3.0);
    assert!(worst_ulps(Function::Slope, &both_signs(86.98, 997)) <= 4.0);
    assert!(worst_ulps(Function::Erf, &both_signs(10.0, 1999)) <= 1.0);
}

#[test]
fn special_values_follow_the_limits() {
    const INF: f32 = f32::INFINITY;
    let cases: [(Function, &[(f32, f32)]); 6] = [
        (
            Function::Exp,
            &[
                (0.0, 1.0),
                (-0.0, 1.0),
                (INF, INF),
                (-INF, 0.0),
                (88.73, INF),
                (f32::MAX, INF),
                (-87.0, 0.0),
                (-104.0, 0.0),
                (f32::MIN, 0.0),
                (f32::from_bits(1), 1.0),
            ],
        ),
        (Function::Ln, &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)]),
        (
            Function::Tanh,
            &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e-40, 1e-40), (9.1, 1.0)],
        ),
        (
            Function::Sigmoid,
            &[(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e4, 1.0), (-1e4, 0.0)],
        ),
        (Function::Slope, &[(0.0, 0.25), (INF, 0.0), (-INF, 0.0)]),
        (Function::Erf, &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (4.0, 1.0)]),
    ];
    for isa in Isa::available() {
        for (function, pairs) in cases {
            for &(x, y) in pairs {
                let got = function.apply(isa, &[x])[0];
                assert_eq!(got.to_bits(), y.to_bits(), "{isa} {function:?}({x}) = {got}");
            }
        }
        for function in ALL {
            assert!(function.apply(isa, &[f32::NAN])[0].is_nan(), "{isa} {function:?}(NaN)");
            assert!(function.apply(isa, &[-f32::NAN])[0].is_nan(), "{isa} {function:?}(-NaN)");
        }
        for x in [-1e-45, -1.0, f32::MIN, -INF] {
            assert!(Function::Ln.apply(isa, &[x])[0].is_nan(), "{isa} ln({x})");
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(16_411).map(f32::from_bits).collect();
    x.extend((-2000..2000).map(|i| i as f32 / 19.0));
    for function in ALL {
        let expected = function.apply(Isa::Portable, &x);
        for isa in Isa::available() {
            for ((x, got), expected) in x.iter().zip(function.apply(isa, &x)).zip(&expected) {
                let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
                assert!(same, "{isa} {function:?}({x}): {got} is not {expected}");
            }
        }
    }
}

#[test]
fn exponentials_are_monotonic() {
    let x: Vec<f32> = (-9_000_000..9_000_000).step_by(7).map(|i| i as f32 * 1e-5).collect();
    let y = Function::Exp.apply(Isa::detect(), &x);
    assert!(y.windows(2).all(|pair| pair[0] <= pair[1]));
}

/// Points spread over `[-limit, limit]`, with steps that are not round.
fn points(limit: f64) -> impl Iterator<Item = f64> {
    (-200_000..200_000).map(move |i| f64::from(i) * limit / 199_999.7)
}

#[test]
fn scalar_exp_ln_and_tanh_agree_with_the_standard_library_to_the_last_bits() {
    for x in points(709.0) {
        assert!(ulps_f64(scalar::exp(x), x.exp()) <= 2, "exp({x})");
    }
    for x in points(700.0).map(f64::exp).chain(points(0.5).map(|x| 1.0 + x)) {
        assert!(ulps_f64(scalar::ln(x), x.ln()) <= 2, "ln({x})");
    }
    for x in points(30.0).chain(points(1.0)).chain(points(1e-9)) {
        assert!(ulps_f64(scalar::tanh(x), x.tanh()) <= 4, "tanh({x})");
    }
    for x in [-708.5, -720.3, -744.4] {
        assert!(scalar::exp(x).to_bits().abs_diff(x.exp().to_bits()) <= 2, "subnormal exp({x})");
    }
    let subnormal = f64::from_bits(12_345);
    assert!(ulps_f64(scalar::ln(subnormal), subnormal.ln()) <= 1);
}

#[test]
fn scalar_sine_and_cosine_are_accurate_to_1e_minus_15_up_to_a_million() {
    let quarter_turns = (1..600_000).step_by(7).map(|i| f64::from(i) * std::f64::consts::FRAC_PI_2);
    for x in points(1e6).chain(points(10.0)).chain(points(1e-4)).chain(quarter_turns) {
        let (sin, cos) = scalar::sin_cos(x);
        assert!((sin - x.sin()).abs() <= 1e-15, "sin({x})");
        assert!((cos - x.cos()).abs() <= 1e-15, "cos({x})");
        assert_eq!(sin.to_bits(), scalar::sin(x).to_bits());
        assert_eq!(cos.to_bits(), scalar::cos(x).to_bits());
    }
}

#[test]
fn scalar_powers_agree_with_the_standard_library() {
    for x in [0.5, 0.9, 0.999, 1.0, 2.0, 10_000.0, 500_000.0] {
        for y in points(40.0).step_by(37) {
            assert!(ulps_f64(scalar::powf(x, y), x.powf(y)) <= 3, "{x} to the {y}");
        }
        for n in -40..40 {
            let (got, expected) = (scalar::powi(x, n), x.powi(n));
            assert!((got / expected - 1.0).abs() < 1e-14, "{x} to the {n}");
        }
    }
    assert_eq!(scalar::powi(-2.0, 3).to_bits(), (-8f64).to_bits());
    assert_eq!(scalar::powi(2.0, i32::MIN).to_bits(), 0);
}

#[test]
fn scalar_special_values_follow_the_limits() {
    const INF: f64 = f64::INFINITY;
    let cases = [
        (scalar::exp(0.0), 1.0),
        (scalar::exp(INF), INF),
        (scalar::exp(709.9), INF),
        (scalar::exp(-INF), 0.0),
        (scalar::exp(-746.0), 0.0),
        (scalar::ln(1.0), 0.0),
        (scalar::ln(0.0), -INF),
        (scalar::ln(-0.0), -INF),
        (scalar::ln(INF), INF),
        (scalar::tanh(-0.0), -0.0),
        (scalar::tanh(-INF), -1.0),
        (scalar::sin(-0.0), -0.0),
        (scalar::cos(0.0), 1.0),
        (scalar::powf(0.0, 2.0), 0.0),
        (scalar::powf(0.0, -2.0), INF),
        (scalar::powf(INF, 0.5), INF),
        (scalar::powf(0.0, 0.0), 1.0),
        (scalar::powf(7.5, 0.0), 1.0),
    ];
    for (i, (got, expected)) in cases.into_iter().enumerate() {
        assert_eq!(got.to_bits(), expected.to_bits(), "case {i}: {got} is not {expected}");
    }
    for (i, got) in [
        scalar::exp(f64::NAN),
        scalar::ln(f64::NAN),
        scalar::ln(-1.0),
        scalar::tanh(f64::NAN),
        scalar::sin(INF),
        scalar::cos(f64::NAN),
        scalar::powf(f64::NAN, 1.0),
        scalar::powf(-1.0, 0.5),
        scalar::powi(f64::NAN, 2),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(got.is_nan(), "case {i}: {got}");
    }
}

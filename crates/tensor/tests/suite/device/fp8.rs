//! Products in fp8: quantisation to the bit, products, epilogues, both gradients of a layer, and
//! numbers that are not finite.

use super::{Case, cases};
use crate::common::{numbers, wide};
use half::bf16;
use lockstep_tensor::device::{
    Buffer, Dtype, Epilogue, LinearGradients, Matrix, MatrixMut, OutputGradient, ViewMut,
};
use lockstep_tensor::fp8::Role;
use lockstep_tensor::gemm::{Precision, Write};
use lockstep_tensor::internals::check_precision;
use lockstep_tensor::reference::{self, fp8};

type Shape = (usize, usize, usize);

/// Roles of the operands of forward, input gradient and both layouts of the weight gradient.
const PAIRS: [[Role; 2]; 4] = [
    [Role::Activation, Role::Weight],
    [Role::Gradient, Role::Weight],
    [Role::Gradient, Role::Activation],
    [Role::Activation, Role::Gradient],
];

/// Devices with products in fp8.
fn fp8_cases() -> impl Iterator<Item = Case> {
    let has_fp8 = |case: &Case| case.device.check_precision(Precision::Fp8).is_ok();
    cases().into_iter().filter(move |case| case.dtype != Dtype::F16 && has_fp8(case))
}

/// The numbers of an outer x k operand after quantisation.
fn oracle(x: &[f32], k: usize, role: Role) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|x| bf16::from_f32(*x).to_f64()).collect();
    let magnitudes = match role {
        Role::Gradient => fp8::magnitudes(5, 2),
        Role::Activation | Role::Weight => fp8::magnitudes(4, 3),
    };
    fp8::round_trip(&x, k, if role == Role::Weight { 128 } else { 1 }, &magnitudes)
}

/// Numbers of many magnitudes, with ties, numbers just above 1.75, and zeros.
fn varied(seed: u32, outer: usize, k: usize) -> Vec<f32> {
    let mut x = numbers(seed, outer * k);
    let power = |exponent: usize| 2f32.powi(i32::try_from(exponent).unwrap());
    for (i, x) in x.iter_mut().enumerate() {
        let (row, col) = (i / k, i % k);
        *x *= power(row % 11 * 3) / power(15 + col % 7);
        match col % 13 {
            3 => *x = 1.0625 * power(col % 5),
            5 => *x = -1.757_812_5 * power(row % 9),
            _ if row % 17 == 4 => *x = 0.0,
            _ => {}
        }
    }
    x
}

fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|j| x.iter().skip(j).step_by(cols)).copied().collect()
}

/// An outer x k operand, stored so or as its transpose, on the device.
fn upload(case: Case, x: &[f32], k: usize, is_turned: bool) -> Buffer {
    if is_turned { case.upload(&transposed(x, k)) } else { case.upload(x) }
}

/// `c (= or +=) a b`, of an m x k and an n x k operand.
fn multiply(
    case: Case,
    (m, n, k): Shape,
    roles: [Role; 2],
    turned: [bool; 2],
    [a, b]: [&Buffer; 2],
    target: &mut Buffer,
    (write, epilogue): (Write, Epilogue<'_>),
) {
    let a = if turned[0] { Matrix::new(a.view(), k, m).t() } else { Matrix::new(a.view(), m, k) };
    let b = if turned[1] { Matrix::new(b.view(), k, n) } else { Matrix::new(b.view(), n, k).t() };
    let (a, b) = (a.in_role(roles[0]), b.in_role(roles[1]));
    let target = MatrixMut::new(target.view_mut(), m, n);
    case.device.product(Precision::Fp8, a, b, target, write, epilogue).unwrap();
}

#[test]
fn quantisation_has_the_bits_of_the_oracle() {
    for (outer, k) in [(16, 16), (48, 272), (144, 160)] {
        let x = varied(1, outer, k);
        let one: Vec<f32> = (0..k * k).map(|i| f32::from(i / k == i % k)).collect();
        for role in [Role::Activation, Role::Weight, Role::Gradient] {
            // Blocks on both sides are not a product of any layer.
            let other = if role == Role::Weight { Role::Activation } else { Role::Weight };
            let expected: Vec<f32> = oracle(&x, k, role).iter().map(|x| *x as f32).collect();
            for (case, is_turned) in fp8_cases().flat_map(|case| [(case, false), (case, true)]) {
                let (x, one) = (upload(case, &x, k, is_turned), case.upload(&one));
                let set = || (Write::Set, Epilogue::None);
                let mut left = case.poisoned_f32(outer * k);
                let (roles, turned) = ([role, other], [is_turned, false]);
                multiply(case, (outer, k, k), roles, turned, [&x, &one], &mut left, set());
                let mut right = case.poisoned_f32(k * outer);
                let (roles, turned) = ([other, role], [false, is_turned]);
                multiply(case, (k, outer, k), roles, turned, [&one, &x], &mut right, set());
                let what = format!("{} {role:?} {outer} x {k}, {is_turned}", case.label());
                assert!(case.download(&left) == expected, "left {what}");
                assert!(transposed(&case.download(&right), outer) == expected, "right {what}");
            }
        }
    }
}

/// The product of quantised operands, and the sum of the magnitudes of its terms.
fn product((m, n, k): Shape, roles: [Role; 2], a: &[f32], b: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = (oracle(a, k, roles[0]), oracle(b, k, roles[1]));
    let terms = |i: usize| (0..k).map(move |p| (i / n * k + p, i % n * k + p));
    let sum = |of: &dyn Fn(f64) -> f64| {
        (0..m * n).map(|i| terms(i).map(|(p, q)| of(a[p] * b[q])).sum()).collect()
    };
    (sum(&|x| x), sum(&f64::abs))
}

/// Tensor cores align the terms of a sum to the largest and drop what is 13 bits below it, for each
/// of 128 terms at most before a sum in `f32`: far less than 2^-9 of all magnitudes. Results in
/// bf16 are rounded once more.
fn assert_within(case: Case, what: &str, got: &Buffer, expected: &[f64], magnitudes: &[f64]) {
    let half_ulp = if got.view().dtype() == Dtype::Bf16 { 2f64.powi(-8) } else { 2f64.powi(-22) };
    let got = case.download(got);
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let bound = 2f64.powi(-9) * magnitudes[i] + half_ulp * expected.abs();
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= bound, "{what} on {}: {i}: {got}, not {expected}", case.label());
    }
}

#[test]
fn products_in_fp8_match_the_oracle() {
    for (shape, is_turned) in
        [((32, 48, 64), false), ((128, 144, 272), true), ((16, 16, 400), false)]
    {
        let (m, n, k) = shape;
        let (a, b, c) = (numbers(3, m * k), numbers(4, n * k), numbers(5, m * n));
        for roles in PAIRS {
            let (expected, magnitudes) = product(shape, roles, &a, &b);
            for case in fp8_cases() {
                let turned = [is_turned, !is_turned];
                let operands = [upload(case, &a, k, turned[0]), upload(case, &b, k, turned[1])];
                let [left, right] = &operands;
                let mut set = if case.is_cpu { case.poisoned(m * n) } else { bf16_of(case, m * n) };
                let write = (Write::Set, Epilogue::None);
                multiply(case, shape, roles, turned, [left, right], &mut set, write);
                assert_within(case, "set", &set, &expected, &magnitudes);
                let mut sum = case.upload_f32(&c);
                let write = (Write::Add, Epilogue::None);
                multiply(case, shape, roles, turned, [left, right], &mut sum, write);
                let plus: Vec<f64> = expected.iter().zip(wide(&c)).map(|(x, c)| x + c).collect();
                assert_within(case, "add", &sum, &plus, &magnitudes);
            }
        }
    }
}

/// A target in bf16, the type of an accelerator's activations.
fn bf16_of(case: Case, len: usize) -> Buffer {
    case.upload_as(Dtype::Bf16, &vec![f32::NAN; len])
}

#[test]
fn epilogues_of_products_in_fp8_match_the_oracle() {
    let (m, n, k) = (48, 64, 144);
    let a: Vec<f32> = numbers(7, m * k).iter().map(|x| x / 8.0).collect();
    let (b, bias, other) = (numbers(8, n * k), numbers(9, n), numbers(10, m * n));
    let roles = [Role::Activation, Role::Weight];
    let (plain, magnitudes) = product((m, n, k), roles, &a, &b);
    for case in fp8_cases().filter(|case| case.is_cpu || case.dtype == Dtype::Bf16) {
        let (a, b) = (case.upload(&a), case.upload(&b));
        let (bias_on, other_on) = (case.upload_f32(&bias), case.upload(&other));
        let run = |epilogue: Epilogue<'_>| {
            let mut out = case.poisoned(m * n);
            let operands = [&a, &b];
            let write = (Write::Set, epilogue);
            multiply(case, (m, n, k), roles, [false; 2], operands, &mut out, write);
            out
        };
        let with_bias = reference::bias::add(&plain, &wide(&bias));
        let got = run(Epilogue::Bias(bias_on.view()));
        assert_within(case, "bias", &got, &with_bias, &magnitudes);

        let residual = other_on.view();
        let got = run(Epilogue::Residual { bias: Some(bias_on.view()), residual });
        let sum: Vec<f64> = with_bias.iter().zip(case.wide(&other)).map(|(x, y)| x + y).collect();
        // The fallback rounds before each addition.
        let around: Vec<f64> = magnitudes.iter().map(|x| x + 4.0).collect();
        assert_within(case, "residual", &got, &sum, &around);

        let got = run(Epilogue::GeluBackward { before: other_on.view() });
        let expected = reference::gelu::backward(&case.wide(&other), &plain);
        assert_within(case, "gradient of gelu", &got, &expected, &around);

        let mut before = case.poisoned(m * n);
        let got = run(Epilogue::BiasGelu { bias: bias_on.view(), before: before.view_mut() });
        assert_within(case, "before gelu", &before, &with_bias, &magnitudes);
        let expected = reference::gelu::forward(&with_bias);
        assert_within(case, "gelu", &got, &expected, &around);
    }
}

/// A linear layer of (rows, inputs, outputs) on a device, its weight with a row per output or, if
/// `by_input`, per input.
struct Layer {
    case: Case,
    shape: Shape,
    by_input: bool,
    x: Buffer,
    weight: Buffer,
}

impl Layer {
    fn new(case: Case, shape: Shape, by_input: bool, x: &[f32], weight: &[f32]) -> Self {
        let weight = upload(case, weight, shape.1, by_input);
        Self { case, shape, by_input, x: case.upload(x), weight }
    }

    fn weight(&self) -> Matrix<'_> {
        let (view, (_, inputs, outputs)) = (self.weight.view(), self.shape);
        let weight = if self.by_input {
            Matrix::new(view, inputs, outputs).t()
        } else {
            Matrix::new(view, outputs, inputs)
        };
        weight.in_role(Role::Weight)
    }

    /// Both gradients in one call.
    fn at_once(&self, dy: OutputGradient<'_>, add: bool) -> [Vec<f32>; 2] {
        self.gradients(add, |dx, d_weight, write| {
            let ((rows, inputs, _), weight) = (self.shape, self.weight());
            let gradients = LinearGradients {
                weight,
                d_input: (MatrixMut::new(dx, rows, inputs), write, Epilogue::None),
                input: Matrix::new(self.x.view(), rows, inputs),
                d_weight: (MatrixMut::new(d_weight, weight.rows, weight.cols), write),
            };
            self.case.device.linear_backward(Precision::Fp8, dy, gradients).unwrap();
        })
    }

    /// Both gradients by two products.
    fn apart(&self, dy: &Buffer, add: bool) -> [Vec<f32>; 2] {
        self.gradients(add, |dx, d_weight, write| {
            let ((rows, inputs, outputs), weight) = (self.shape, self.weight());
            let dy = Matrix::new(dy.view(), rows, outputs).in_role(Role::Gradient);
            let x = Matrix::new(self.x.view(), rows, inputs);
            let dx = MatrixMut::new(dx, rows, inputs);
            let d_weight = MatrixMut::new(d_weight, weight.rows, weight.cols);
            let (fp8, device) = (Precision::Fp8, self.case.device);
            device.product(fp8, dy, weight, dx, write, Epilogue::None).unwrap();
            let [left, right] = if self.by_input { [x.t(), dy] } else { [dy.t(), x] };
            device.product(fp8, left, right, d_weight, write, Epilogue::None).unwrap();
        })
    }

    /// Calls `body` with targets: the gradient of the input, and that of the weight, in `f32`.
    fn gradients(
        &self,
        add: bool,
        body: impl FnOnce(ViewMut<'_>, ViewMut<'_>, Write),
    ) -> [Vec<f32>; 2] {
        let (case, (rows, inputs, outputs)) = (self.case, self.shape);
        let before = |seed, len| if add { numbers(seed, len) } else { vec![f32::NAN; len] };
        let mut dx = case.upload(&before(21, rows * inputs));
        let mut d_weight = case.upload_f32(&before(22, inputs * outputs));
        let write = if add { Write::Add } else { Write::Set };
        body(dx.view_mut(), d_weight.view_mut(), write);
        [dx, d_weight].map(|buffer| case.download(&buffer))
    }
}

fn assert_bits(what: &str, layer: &Layer, got: &[Vec<f32>; 2], expected: &[Vec<f32>; 2]) {
    for (name, got, expected) in [("dx", &got[0], &expected[0]), ("dw", &got[1], &expected[1])] {
        let differs = got.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        let (label, shape) = (layer.case.label(), layer.shape);
        assert_eq!(differs, None, "{what}, {name} of {shape:?} by {} on {label}", layer.by_input);
    }
}

/// Cases and both layouts of a weight.
fn layer_cases() -> impl Iterator<Item = (Case, bool)> {
    fp8_cases().flat_map(|case| [(case, false), (case, true)])
}

#[test]
fn a_gradient_quantised_once_has_the_bits_of_the_oracle() {
    for n in [16, 144, 272] {
        let one: Vec<f32> = (0..n * n).map(|i| f32::from(i / n == i % n)).collect();
        let dy = varied(13, n, n);
        let by_rows: Vec<f32> = oracle(&dy, n, Role::Gradient).iter().map(|x| *x as f32).collect();
        let turned: Vec<f32> =
            oracle(&transposed(&dy, n), n, Role::Gradient).iter().map(|x| *x as f32).collect();
        for (case, by_input) in layer_cases() {
            let layer = Layer::new(case, (n, n, n), by_input, &one, &one);
            let dy = case.upload(&dy);
            let got = layer.at_once(OutputGradient::Stored(dy.view()), false);
            let d_weight = if by_input { transposed(&turned, n) } else { turned.clone() };
            let what = format!("{} of {n}, by input: {by_input}", case.label());
            assert!(got[0] == by_rows, "dx on {what}");
            assert!(got[1] == d_weight, "dw on {what}");
        }
    }
}

#[test]
fn both_gradients_at_once_have_the_bits_of_two_products() {
    for shape in [(48, 32, 144), (272, 160, 16), (128, 256, 128), (400, 48, 304)] {
        let (rows, inputs, outputs) = shape;
        let (x, weight) = (numbers(14, rows * inputs), numbers(15, inputs * outputs));
        let dy = varied(16, rows, outputs);
        let of_dx = product(
            (rows, inputs, outputs),
            [Role::Gradient, Role::Weight],
            &dy,
            &transposed(&weight, inputs),
        );
        let [left, right] = [transposed(&dy, outputs), transposed(&x, inputs)];
        let of_weight =
            product((outputs, inputs, rows), [Role::Gradient, Role::Activation], &left, &right);
        for (case, by_input) in layer_cases() {
            let layer = Layer::new(case, shape, by_input, &x, &weight);
            let dy = case.upload(&dy);
            for add in [false, true] {
                let got = layer.at_once(OutputGradient::Stored(dy.view()), add);
                assert_bits("apart", &layer, &got, &layer.apart(&dy, add));
            }
            let [dx, d_weight] = layer.at_once(OutputGradient::Stored(dy.view()), false);
            let d_weight = if by_input { transposed(&d_weight, outputs) } else { d_weight };
            assert_within(case, "dx", &case.upload(&dx), &of_dx.0, &of_dx.1);
            let (expected, magnitudes) = &of_weight;
            assert_within(case, "dw", &case.upload_f32(&d_weight), expected, magnitudes);
        }
    }
}

/// One kernel computes and quantises the gradient where `ffn` is a multiple of 128.
#[test]
fn a_gradient_of_swiglu_has_the_bits_of_a_stored_one() {
    for (rows, inputs, ffn) in [(48, 32, 128), (144, 64, 256), (272, 16, 384), (64, 32, 144)] {
        let shape = (rows, inputs, 2 * ffn);
        let (x, weight) = (numbers(17, rows * inputs), numbers(18, 2 * inputs * ffn));
        let gate_up: Vec<f32> = numbers(19, 2 * rows * ffn).iter().map(|x| 4.0 * x).collect();
        let d_act = varied(20, rows, ffn);
        for (case, by_input) in layer_cases() {
            let layer = Layer::new(case, shape, by_input, &x, &weight);
            let (gate_up, d_act) = (case.upload(&gate_up), case.upload(&d_act));
            let (mut dy, mut place) = (case.poisoned(gate_up.len()), case.poisoned(gate_up.len()));
            let none = ViewMut::of::<f32>(&mut []);
            let (read, d_read) = (gate_up.view(), d_act.view());
            case.device.swiglu_backward(read, ffn, d_read, dy.view_mut(), none).unwrap();
            let of_swiglu = OutputGradient::SwiGlu {
                gate_up: read,
                ffn,
                d_act: d_read,
                place: place.view_mut(),
            };
            let got = layer.at_once(of_swiglu, false);
            assert_bits("swiglu", &layer, &got, &layer.apart(&dy, false));
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_not_clamped() {
    let (m, n, k) = (32, 16, 256);
    for number in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut a = numbers(11, m * k);
        a[5 * k + 130] = number;
        for (case, is_turned) in fp8_cases().flat_map(|case| [(case, false), (case, true)]) {
            let (a, b) = (upload(case, &a, k, is_turned), case.upload(&numbers(12, n * k)));
            let mut out = case.poisoned_f32(m * n);
            let roles = [Role::Gradient, Role::Weight];
            let write = (Write::Set, Epilogue::None);
            multiply(case, (m, n, k), roles, [is_turned, false], [&a, &b], &mut out, write);
            for (row, out) in case.download(&out).chunks(n).enumerate() {
                let is_right = |x: &f32| if row == 5 { x.is_nan() } else { x.is_finite() };
                assert!(out.iter().all(is_right), "{}: {number}: row {row}", case.label());
            }
        }
    }
}

#[test]
fn fp8_is_refused_where_block_scales_are_missing() {
    let check = |capability, library| check_precision(Precision::Fp8, capability, library);
    assert_eq!(check((9, 0), [12, 9, 0]), Ok(()));
    assert_eq!(check((9, 0), [13, 1, 0]), Ok(()));
    for (capability, library) in [((8, 0), [13, 0, 0]), ((9, 0), [12, 8, 4])] {
        let text = check(capability, library).unwrap_err().to_string();
        assert!(text.starts_with("products in fp8: block scales need"), "{text}");
        assert!(text.contains("set precision.compute = \"bf16\""), "{text}");
        assert_eq!(check_precision(Precision::Bf16, capability, library), Ok(()));
    }
}

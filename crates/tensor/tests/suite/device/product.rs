//! Matrix products: layouts, accumulation, epilogues, types.

use super::{Case, cpu, on_every_device};
use crate::common::{numbers, wide};
use lockstep_tensor::device::{Dtype, Epilogue, Matrix, MatrixMut};
use lockstep_tensor::gemm::{self, Mat, MatMut, Precision, Write};
use lockstep_tensor::reference;

type Shape = (usize, usize, usize);

/// Odd sizes, sizes of one tile, and sizes that cuBLASLt has tensor-core algorithms for.
const SHAPES: [Shape; 8] = [
    (1, 1, 1),
    (3, 5, 7),
    (17, 33, 65),
    (64, 64, 64),
    (70, 136, 520),
    (128, 256, 96),
    (1, 70, 4104),
    (7, 13, 2056),
];

fn operand(case: Case, x: &[f32], dtype: Dtype) -> lockstep_tensor::device::Buffer {
    if dtype == case.dtype { case.upload(x) } else { case.upload_f32(x) }
}

/// The product in `f64`; element (i, p) of a is at `i * k + p` or, transposed, `p * m + i`.
fn oracle((m, n, k): Shape, (a_t, b_t): (bool, bool), a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            for p in 0..k {
                let left = if a_t { a[p * m + i] } else { a[i * k + p] };
                let right = if b_t { b[j * k + p] } else { b[p * n + j] };
                c[i * n + j] += left * right;
            }
        }
    }
    c
}

fn matrices<'a>(
    (m, n, k): Shape,
    (a_t, b_t): (bool, bool),
    a: lockstep_tensor::device::View<'a>,
    b: lockstep_tensor::device::View<'a>,
) -> (Matrix<'a>, Matrix<'a>) {
    let a = if a_t { Matrix::new(a, k, m).t() } else { Matrix::new(a, m, k) };
    let b = if b_t { Matrix::new(b, n, k).t() } else { Matrix::new(b, k, n) };
    (a, b)
}

#[test]
fn products_of_every_layout_match_the_oracle() {
    for (shape, transposed) in SHAPES.into_iter().zip([
        (false, false),
        (false, true),
        (true, false),
        (true, true),
        (false, true),
        (true, false),
        (false, true),
        (false, true),
    ]) {
        let (m, n, k) = shape;
        let (a, b) = (numbers(1, m * k), numbers(2, k * n));
        // Results in `f32` and, as activations, in the type of the operands.
        for as_activation in [false, true] {
            on_every_device(
                |case| {
                    let (a, b) = (case.upload(&a), case.upload(&b));
                    let mut c =
                        if as_activation { case.poisoned(m * n) } else { case.poisoned_f32(m * n) };
                    let (a, b) = matrices(shape, transposed, a.view(), b.view());
                    let target = MatrixMut::new(c.view_mut(), m, n);
                    let precision = case.precision();
                    case.device
                        .product(precision, a, b, target, Write::Set, Epilogue::None)
                        .unwrap();
                    vec![case.download(&c)]
                },
                |case, got| {
                    let expected = oracle(shape, transposed, &case.wide(&a), &case.wide(&b));
                    let exact = Case { dtype: Dtype::F32, ..case };
                    let case = if as_activation { case } else { exact };
                    case.assert_close("product", &got[0], &expected, k);
                },
            );
        }
    }
}

#[test]
fn accumulation_strides_and_bias_match_the_oracle() {
    let (m, n, k) = (19, 24, 40);
    let (a, b, c) = (numbers(3, m * (k + 3)), numbers(4, k * n), numbers(5, m * (n + 8)));
    let bias = numbers(6, n);
    on_every_device(
        |case| {
            let (a, b) = (case.upload(&a), case.upload(&b));
            let (mut c, bias) = (case.upload_f32(&c), case.upload_f32(&bias));
            let a = Matrix::strided(a.view(), m, k, k + 3);
            let b = Matrix::new(b.view(), k, n);
            let target = MatrixMut::strided(c.view_mut(), m, n, n + 8);
            let epilogue = Epilogue::Bias(bias.view());
            case.device.product(case.precision(), a, b, target, Write::Add, epilogue).unwrap();
            vec![case.download(&c)]
        },
        |case, got| {
            let dense: Vec<f32> = a.chunks(k + 3).flat_map(|row| &row[..k]).copied().collect();
            let product = oracle((m, n, k), (false, false), &case.wide(&dense), &case.wide(&b));
            let mut expected = wide(&c);
            for i in 0..m {
                for j in 0..n {
                    expected[i * (n + 8) + j] += product[i * n + j] + f64::from(bias[j]);
                }
            }
            Case { dtype: Dtype::F32, ..case }.assert_close("product", &got[0], &expected, k);
        },
    );
}

#[test]
fn bias_and_gelu_are_an_epilogue() {
    for (m, n, k) in [(5, 7, 9), (48, 64, 32)] {
        let (a, b) = (numbers(7, m * k), numbers(8, n * k));
        let (a, bias) = (a.iter().map(|x| x / 8.0).collect::<Vec<_>>(), numbers(9, n));
        on_every_device(
            |case| {
                let (a, b, bias) = (case.upload(&a), case.upload(&b), case.upload(&bias));
                let (mut before, mut out) = (case.poisoned(m * n), case.poisoned(m * n));
                let (a, b) = matrices((m, n, k), (false, true), a.view(), b.view());
                let epilogue = Epilogue::BiasGelu { bias: bias.view(), before: before.view_mut() };
                let target = MatrixMut::new(out.view_mut(), m, n);
                case.device.product(case.precision(), a, b, target, Write::Set, epilogue).unwrap();
                vec![case.download(&before), case.download(&out)]
            },
            |case, got| {
                let product = oracle((m, n, k), (false, true), &case.wide(&a), &case.wide(&b));
                let before = reference::bias::add(&product, &case.wide(&bias));
                case.assert_close("before", &got[0], &before, k);
                case.assert_close("gelu", &got[1], &reference::gelu::forward(&before), k);
            },
        );
    }
}

#[test]
fn a_residual_is_added_after_the_bias() {
    for (m, n, k) in [(5, 7, 9), (48, 64, 32), (1, 37, 2600), (3, 9, 264), (8, 64, 40)] {
        let (a, b, residual) = (numbers(7, m * k), numbers(8, n * k), numbers(11, m * n));
        let bias = numbers(9, n);
        for with_bias in [false, true] {
            on_every_device(
                |case| {
                    let (a, b, residual) =
                        (case.upload(&a), case.upload(&b), case.upload(&residual));
                    let (bias, mut out) = (case.upload_f32(&bias), case.poisoned(m * n));
                    let (a, b) = matrices((m, n, k), (false, true), a.view(), b.view());
                    let (bias, residual) = (with_bias.then(|| bias.view()), residual.view());
                    let (target, add) = (
                        MatrixMut::new(out.view_mut(), m, n),
                        Epilogue::Residual { bias, residual },
                    );
                    case.device.product(case.precision(), a, b, target, Write::Set, add).unwrap();
                    vec![case.download(&out)]
                },
                |case, got| {
                    let mut sum = oracle((m, n, k), (false, true), &case.wide(&a), &case.wide(&b));
                    if with_bias {
                        sum = reference::bias::add(&sum, &case.wide(&bias));
                    }
                    let residual = case.wide(&residual);
                    sum.iter_mut().zip(residual).for_each(|(sum, other)| *sum += other);
                    case.assert_close("sum", &got[0], &sum, k);
                },
            );
        }
    }
}

#[test]
fn the_gradient_of_gelu_is_an_epilogue() {
    for (m, n, k) in [(5, 7, 9), (48, 64, 32)] {
        let (a, b, before) = (numbers(7, m * k), numbers(8, n * k), numbers(12, m * n));
        let a: Vec<f32> = a.iter().map(|x| x / 8.0).collect();
        on_every_device(
            |case| {
                let (a, b, before) = (case.upload(&a), case.upload(&b), case.upload(&before));
                let mut out = case.poisoned(m * n);
                let (a, b) = matrices((m, n, k), (false, true), a.view(), b.view());
                let epilogue = Epilogue::GeluBackward { before: before.view() };
                let target = MatrixMut::new(out.view_mut(), m, n);
                case.device.product(case.precision(), a, b, target, Write::Set, epilogue).unwrap();
                vec![case.download(&out)]
            },
            |case, got| {
                let dy = oracle((m, n, k), (false, true), &case.wide(&a), &case.wide(&b));
                let dx = reference::gelu::backward(&case.wide(&before), &dy);
                case.assert_close("gradient", &got[0], &dx, k);
            },
        );
    }
}

#[test]
fn f32_operands_are_rounded_to_the_precision() {
    let (m, n, k) = (33, 40, 72);
    let (a, b) = (numbers(10, m * k), numbers(11, k * n));
    on_every_device(
        |case| {
            let (a, b) = (operand(case, &a, Dtype::F32), operand(case, &b, case.dtype));
            let mut c = case.poisoned_f32(m * n);
            let (a, b) = matrices((m, n, k), (false, false), a.view(), b.view());
            let target = MatrixMut::new(c.view_mut(), m, n);
            let precision = case.precision();
            case.device.product(precision, a, b, target, Write::Set, Epilogue::None).unwrap();
            vec![case.download(&c)]
        },
        |case, got| {
            let expected = oracle((m, n, k), (false, false), &case.wide(&a), &case.wide(&b));
            Case { dtype: Dtype::F32, ..case }.assert_close("product", &got[0], &expected, k);
        },
    );
}

#[test]
fn stored_algorithms_give_the_bits_of_the_run_that_chose_them() {
    let (m, n, k) = (64, 96, 320);
    let (a, b) = (numbers(16, m * k), numbers(17, k * n));
    let run = |device: &dyn lockstep_tensor::device::Device, dtype| {
        let upload = |x: &[f32]| {
            let mut wide = device.allocate(Dtype::F32, x.len()).unwrap();
            device.copy(x.into(), wide.view_mut()).unwrap();
            let mut buffer = device.allocate(dtype, x.len()).unwrap();
            device.convert(wide.view(), buffer.view_mut(), super::none()).unwrap();
            buffer
        };
        let (a, b) = (upload(&a), upload(&b));
        let mut c = device.allocate(Dtype::F32, m * n).unwrap();
        let (a, b) = matrices((m, n, k), (false, false), a.view(), b.view());
        let target = MatrixMut::new(c.view_mut(), m, n);
        device.product(Precision::Bf16, a, b, target, Write::Set, Epilogue::None).unwrap();
        let mut got = vec![0.0f32; m * n];
        device.copy(c.view(), got[..].as_mut().into()).unwrap();
        (super::bits(&got), device.product_algorithms().unwrap())
    };
    let (_, of_cpu) = run(cpu(), Dtype::Bf16);
    assert_eq!(of_cpu, "", "the CPU has one order of additions");
    let set = |list| lockstep_tensor::device::Products::set_product_algorithms(cpu(), list);
    set("").unwrap();
    let error = set("x\n").unwrap_err().to_string();
    assert!(error.ends_with("resume on the device that chose them"), "{error}");
    let Ok(first) = lockstep_tensor::cuda::open(0) else { return };
    let (bits, algorithms) = run(&first, Dtype::Bf16);
    assert!(algorithms.contains("\n64x96x320 bf16 f32 "), "{algorithms}");
    let second: &dyn lockstep_tensor::device::Device = &lockstep_tensor::cuda::open(0).unwrap();
    second.set_product_algorithms(&algorithms).unwrap();
    assert_eq!(second.product_algorithms().unwrap(), algorithms, "before their first use too");
    assert_eq!(run(second, Dtype::Bf16), (bits, algorithms.clone()));
    second.set_product_algorithms(&format!("x{algorithms}")).unwrap_err();
}

#[test]
fn the_cpu_device_has_the_bits_of_its_kernel() {
    let (m, n, k) = (13, 35, 520);
    let (a, b, bias) = (numbers(12, m * k), numbers(13, n * k), numbers(14, n));
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let mut expected = numbers(15, m * n);
        let mut got = expected.clone();
        let (left, right) = (Mat::new(&a, m, k), Mat::new(&b, n, k).t());
        let target = MatMut::new(&mut expected, m, n);
        gemm::product(cpu(), precision, left, right, target, Write::Add, Some(&bias));
        let (left, right) = matrices((m, n, k), (false, true), a[..].into(), b[..].into());
        let target = MatrixMut::new(got[..].as_mut().into(), m, n);
        let (cpu, epilogue) = (cpu(), Epilogue::Bias(bias[..].into()));
        lockstep_tensor::device::Products::product(
            cpu,
            precision,
            left,
            right,
            target,
            Write::Add,
            epilogue,
        )
        .unwrap();
        assert_eq!(super::bits(&got), super::bits(&expected));
    }
}

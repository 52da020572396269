//! Forward and backward of adapters against formulas in `f64`, with dropout and two shards.

use super::{AdapterParams, ColumnAdapters, RowAdapter};
use crate::collectives::SingleRank;
use crate::dropout::AdapterMasks;
use crate::formats::Formats;
use crate::grads::Grads;
use crate::param::{Param, ParamList};
use crate::scratch::Scratch;
use crate::tensor_shards::TensorShards;
use lockstep_config::{Lora, LoraTarget, LoraTargets, Model, Recipe};
use lockstep_tensor::device::{View, ViewMut};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::random::{self, Key};
use lockstep_tensor::{Cpu, Isa};

const ROWS: usize = 5;
const LORA: Lora =
    Lora { rank: 3, alpha: 6.0, dropout: 0.4, targets: LoraTargets::ALL, ..Lora::NONE };
const MASKS_SEED: u64 = 9;

/// A matrix in `f64`, row by row.
type Rows = Vec<Vec<f64>>;

fn masks() -> AdapterMasks {
    AdapterMasks { key: Some(Key::new(MASKS_SEED, "masks")), rate: LORA.dropout, first_row: 20 }
}

fn model() -> Model {
    let model = Recipe::default().model;
    Model { width: 8, heads: 2, kv_heads: 2, ffn: 6, lora: LORA, ..model }
}

fn draw(cpu: &Cpu, name: &str, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    random::fill_normal(cpu, Key::new(3, name), 0, 1.0, &mut values);
    values
}

fn rows(values: &[f32], width: usize) -> Rows {
    values.chunks(width).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
}

fn transposed(m: &Rows) -> Rows {
    (0..m[0].len()).map(|j| m.iter().map(|row| row[j]).collect()).collect()
}

/// `scale * a b`.
fn times(scale: f64, a: &Rows, b: &Rows) -> Rows {
    let columns = transposed(b);
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    a.iter().map(|row| columns.iter().map(|c| scale * dot(row, c)).collect()).collect()
}

fn by_element(a: &Rows, b: &Rows, f: impl Fn(f64, f64) -> f64) -> Rows {
    let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
    a.iter().zip(b).map(row).collect()
}

/// Factors of a mask: zero, or one over the share that is kept.
fn factors(cpu: &Cpu, target: LoraTarget, shard: usize, width: usize) -> Rows {
    let mut ones = vec![1.0; ROWS * width];
    let mask = masks().of(target, shard, 0, width).expect("a mask");
    mask.apply(cpu, ViewMut::of(&mut ones)).unwrap();
    assert!(ones.contains(&0.0) && ones.iter().any(|x| *x > 1.0), "some are dropped");
    rows(&ones, width)
}

fn assert_close(found: &Rows, expected: &Rows, what: &str) {
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{what}: {found}");
    }
}

/// Joins the shards of a matrix whose columns are sharded.
fn joined(shards: &[Rows]) -> Rows {
    (0..shards[0].len()).map(|i| shards.iter().flat_map(|s| s[i].clone()).collect()).collect()
}

/// Whole tensor of a parameter from the pieces in a flat buffer.
fn tensor(params: &[Param], flat: &[f32], name: &str) -> Rows {
    let (mut whole, mut width) = (Vec::new(), 0);
    for param in params.iter().filter(|param| param.name.contains(name)) {
        whole.resize(param.tensor_len(), f32::NAN);
        width = param.shape[1];
        param.place(0, &flat[param.range()], &mut whole);
    }
    rows(&whole, width)
}

/// Parameters, their values, and gradients of all of them from zero.
struct Flat {
    params: Vec<Param>,
    values: Vec<f32>,
    grads: Vec<f32>,
}

impl Flat {
    fn new(cpu: &Cpu, list: ParamList) -> Self {
        let params = list.finish();
        let len = params.last().map_or(0, |last| last.range().end);
        Self { params, values: draw(cpu, "values", len), grads: vec![0.0; len] }
    }
}

#[test]
fn adapters_of_a_column_parallel_layer_follow_the_formulas() {
    let (cpu, model, tp_shards) = (Cpu::single(Isa::detect()), model(), TensorShards::all(2));
    let (mut list, formats) = (ParamList::default(), Formats::on_cpu(Precision::F32));
    let mut params =
        AdapterParams { model: &model, tp_shards: &tp_shards, formats, params: &mut list };
    let targets = [LoraTarget::Gate, LoraTarget::Up];
    let adapters = ColumnAdapters::new(&mut params, "m", &targets);
    let mut flat = Flat::new(&cpu, list);
    let (x, shard_len) = (draw(&cpu, "x", ROWS * model.width), ROWS * model.ffn);
    // A row of a shard is half of the gates, then half of the ups.
    let (y, dy) = (draw(&cpu, "y", 2 * shard_len), draw(&cpu, "dy", 2 * shard_len));
    let (mut out, mut dx) = (y.clone(), vec![0.0; x.len()]);
    let mut scratch = Scratch::new(&cpu, adapters.scratch_len(ROWS)).unwrap();
    let (values, all) = (View::of(&flat.values), 0..flat.values.len());
    let (input, frame) = (View::of(&x), scratch.frame());
    adapters.forward(&cpu, values, input, ViewMut::of(&mut out), masks(), frame).unwrap();
    let (mut frame, none) = (scratch.frame(), &mut SingleRank);
    let d_hidden =
        adapters.hidden_gradients(&cpu, none, values, View::of(&dy), ROWS, &mut frame).unwrap();
    let runs = [all];
    let grads = Grads::new(ViewMut::of(&mut flat.grads), &runs);
    let gradients = (View::of(&dy), d_hidden);
    let spare = frame.nested();
    adapters.backward_weight(&cpu, values, input, gradients, masks(), grads, spare).unwrap();
    let target = ViewMut::of(&mut dx);
    let d_hidden = (d_hidden, ROWS);
    adapters.backward_input(&cpu, values, d_hidden, &(0..ROWS), masks(), target, frame).unwrap();

    let (x, mut expected_dx) = (rows(&x, model.width), rows(&dx, model.width));
    expected_dx.iter_mut().flatten().for_each(|x| *x = 0.0);
    let columns = |flat: &[f32], part: usize| {
        let half = model.ffn / 2;
        let shard = |flat: &[f32]| -> Rows {
            let rows = rows(flat, model.ffn);
            rows.iter().map(|row| row[part * half..(part + 1) * half].to_vec()).collect()
        };
        joined(&[shard(&flat[..shard_len]), shard(&flat[shard_len..])])
    };
    for (part, target) in targets.into_iter().enumerate() {
        let name = |end: &str| format!("{target}.lora_{end}.weight");
        let [a, b] = ["A", "B"].map(|end| tensor(&flat.params, &flat.values, &name(end)));
        let mask = factors(&cpu, target, 0, model.width);
        let dropped = by_element(&x, &mask, |x, m| x * m);
        let hidden = times(2.0, &dropped, &transposed(&a));
        let added = times(1.0, &hidden, &transposed(&b));
        let expected = by_element(&columns(&y, part), &added, |y, added| y + added);
        assert_close(&columns(&out, part), &expected, "output");
        let dy = columns(&dy, part);
        let d_hidden = times(2.0, &dy, &b);
        let d_b = times(1.0, &transposed(&dy), &hidden);
        assert_close(&tensor(&flat.params, &flat.grads, &name("B")), &d_b, "gradient of B");
        let d_a = times(1.0, &transposed(&d_hidden), &dropped);
        assert_close(&tensor(&flat.params, &flat.grads, &name("A")), &d_a, "gradient of A");
        let own = by_element(&times(1.0, &d_hidden, &a), &mask, |x, m| x * m);
        expected_dx = by_element(&expected_dx, &own, |x, own| x + own);
    }
    assert_close(&rows(&dx, model.width), &expected_dx, "input gradient");
}

#[test]
fn the_adapter_of_a_row_parallel_layer_follows_the_formulas() {
    let (cpu, model, tp_shards) = (Cpu::single(Isa::detect()), model(), TensorShards::all(2));
    let (mut list, formats) = (ParamList::default(), Formats::on_cpu(Precision::F32));
    let mut params =
        AdapterParams { model: &model, tp_shards: &tp_shards, formats, params: &mut list };
    let target = LoraTarget::Down;
    let adapter = RowAdapter::new(&mut params, "m", target).expect("a target");
    let mut flat = Flat::new(&cpu, list);
    let (half, width) = (model.ffn / 2, model.width);
    let x = draw(&cpu, "x", ROWS * model.ffn);
    let (y, dy) = (draw(&cpu, "y", ROWS * width), draw(&cpu, "dy", ROWS * width));
    let (mut out, mut dx) = (y.clone(), vec![0.0; x.len()]);
    let mut scratch = Scratch::new(&cpu, adapter.scratch_len(ROWS)).unwrap();
    let (values, all) = (View::of(&flat.values), 0..flat.values.len());
    let runs = std::slice::from_ref(&all);
    let (input, d_out, alone) = (View::of(&x), View::of(&dy), &mut SingleRank);
    let (target_y, frame) = (ViewMut::of(&mut out), scratch.frame());
    adapter.forward(&cpu, alone, values, input, target_y, masks(), frame).unwrap();
    let (grads, frame) = (Grads::new(ViewMut::of(&mut flat.grads), runs), scratch.frame());
    adapter.backward_weight(&cpu, alone, values, input, d_out, masks(), grads, frame).unwrap();
    let (target_x, frame) = (ViewMut::of(&mut dx), scratch.frame());
    adapter.backward_input(&cpu, values, d_out, target_x, masks(), frame).unwrap();

    let of_shards = |flat: &[f32]| {
        let (first, second) = flat.split_at(ROWS * half);
        joined(&[rows(first, half), rows(second, half)])
    };
    let mask = joined(&[0, 1].map(|shard| factors(&cpu, target, shard, half)));
    let [a, b] = ["lora_A", "lora_B"].map(|name| tensor(&flat.params, &flat.values, name));
    let dropped = by_element(&of_shards(&x), &mask, |x, m| x * m);
    let hidden = times(2.0, &dropped, &transposed(&a));
    let added = times(1.0, &hidden, &transposed(&b));
    let expected = by_element(&rows(&y, width), &added, |y, added| y + added);
    assert_close(&rows(&out, width), &expected, "output");
    let dy = rows(&dy, width);
    let d_hidden = times(2.0, &dy, &b);
    let d_b = times(1.0, &transposed(&dy), &hidden);
    assert_close(&tensor(&flat.params, &flat.grads, "lora_B"), &d_b, "gradient of B");
    let d_a = times(1.0, &transposed(&d_hidden), &dropped);
    assert_close(&tensor(&flat.params, &flat.grads, "lora_A"), &d_a, "gradient of A");
    let expected = by_element(&times(1.0, &d_hidden, &a), &mask, |x, m| x * m);
    assert_close(&of_shards(&dx), &expected, "input gradient");
}

#[test]
fn a_merged_weight_is_the_weight_plus_the_scaled_product() {
    let mut weight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    // Rank 2, three inputs, two outputs.
    let (a, b) = ([1.0, 0.0, -1.0, 0.5, 2.0, 0.0], [1.0, 2.0, 0.0, -1.0]);
    super::merge(2, 0.5, &a, &b, &mut weight);
    let expected = [2.0f32, 4.0, 2.5, 3.75, 4.0, 6.0];
    assert_eq!(weight.map(f32::to_bits), expected.map(f32::to_bits));
}

//! Against the `f64` oracle and central differences, and bit for bit against itself.

mod options;

use crate::common::{two_threads, wide};
use lockstep_tensor::attention::{
    Dropout, Heads, Options, Rows, Shape, backward_in, forward_in, scratch_len, scratch_len_in,
};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::random::Key;
use lockstep_tensor::reference::attention as reference;
use lockstep_tensor::{Cpu, Isa};

const TOKENS: [usize; 7] = [1, 2, 63, 64, 65, 100, 257];
/// (heads, kv_heads): groups of 1, 2, 3 and 6.
const HEADS: [(usize, usize); 4] = [(2, 2), (4, 2), (3, 1), (6, 1)];

/// One problem: everything a pass reads.
struct Case {
    shape: Shape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
    dropout: Option<Dropout>,
    options: Options<'static>,
    documents: Option<Vec<u32>>,
}

/// All that forward and backward write.
struct Results {
    out: Vec<f32>,
    lse: Vec<f32>,
    dqkv: Vec<f32>,
}

impl Case {
    fn new(sequences: usize, tokens: usize, (heads, kv_heads): (usize, usize), d: usize) -> Self {
        let shape = Shape { sequences, tokens, heads, kv_heads, head_dim: d };
        let rows = sequences * tokens;
        Self {
            shape,
            q: noise(1, rows * heads * d, 2.0),
            k: noise(2, rows * kv_heads * d, 2.0),
            v: noise(3, rows * kv_heads * d, 1.0),
            dout: noise(4, rows * heads * d, 1.0),
            dropout: None,
            options: Options::CAUSAL,
            documents: None,
        }
    }

    fn dropping(mut self, rate: f32, first_sample: u64) -> Self {
        let (key, heads) = (Key::new(7, "attention"), Heads::all(&self.shape));
        self.dropout = Some(Dropout { key, rate, first_sample, heads });
        self
    }

    fn options(&self) -> Options<'_> {
        let documents = self.documents.as_deref();
        Options { dropout: self.dropout.as_ref(), documents, ..self.options }
    }

    fn q(&self) -> Rows<'_> {
        Rows { data: &self.q, stride: self.shape.heads * self.shape.head_dim }
    }

    fn kv(&self) -> [Rows<'_>; 2] {
        let stride = self.shape.kv_heads * self.shape.head_dim;
        [&self.k, &self.v].map(|data| Rows { data, stride })
    }

    fn run(&self, cpu: &Cpu) -> Results {
        let [k, v] = self.kv();
        run(cpu, self.shape, [self.q(), k, v], &self.dout, &self.options())
    }

    fn run_in_bf16(&self, cpu: &Cpu) -> Results {
        let [k, v] = self.kv();
        let rows = [self.q(), k, v];
        run_in(cpu, Precision::Bf16, self.shape, rows, &self.dout, &self.options())
    }

    /// The factor of each probability, straight from the definition.
    fn keep(&self) -> impl Fn(usize, usize, usize, usize) -> f64 {
        let (dropout, heads, tokens) = (self.dropout, self.shape.heads, self.shape.tokens);
        move |sequence, head, query, key| {
            dropout.map_or(1.0, |dropout| {
                let sample = dropout.first_sample as usize + sequence;
                let element = (((sample * heads + head) * tokens + query) * tokens + key) as u64;
                let random = dropout.key.block(element / 4)[(element % 4) as usize];
                let rate = f64::from(dropout.rate);
                if f64::from(random) < rate * 4_294_967_296.0 { 0.0 } else { 1.0 / (1.0 - rate) }
            })
        }
    }

    fn expected_forward(&self) -> (Vec<f64>, Vec<f64>) {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| wide(x));
        reference::forward(&self.shape, &q, &k, &v, 0, &self.options(), self.keep())
    }

    /// The three gradients as rows of q heads, k heads, v heads.
    fn expected_backward(&self) -> Vec<f64> {
        let [q, k, v, dout] = [&self.q, &self.k, &self.v, &self.dout].map(|x| wide(x));
        let (options, keep) = (&self.options(), self.keep());
        let [dq, dk, dv] = reference::backward(&self.shape, &q, &k, &v, &dout, options, keep);
        join(self.shape, [&dq, &dk, &dv])
    }
}

fn run(
    cpu: &Cpu,
    shape: Shape,
    [q, k, v]: [Rows<'_>; 3],
    dout: &[f32],
    options: &Options<'_>,
) -> Results {
    run_in(cpu, Precision::F32, shape, [q, k, v], dout, options)
}

fn run_in(
    cpu: &Cpu,
    precision: Precision,
    shape: Shape,
    [q, k, v]: [Rows<'_>; 3],
    dout: &[f32],
    options: &Options<'_>,
) -> Results {
    // Results must not depend on old contents.
    let mut scratch = vec![f32::NAN; scratch_len_in(precision, shape)];
    let mut out = vec![f32::NAN; dout.len()];
    let mut lse = vec![f32::NAN; dout.len() / shape.head_dim];
    let (out_mut, lse_mut) = (&mut out, &mut lse);
    forward_in(cpu, precision, shape, q, k, v, 0, options, out_mut, lse_mut, &mut scratch);
    scratch.fill(f32::NAN);
    let row = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    let mut dqkv = vec![f32::NAN; shape.sequences * shape.tokens * row];
    let (out_ref, dqkv_mut) = (&out, &mut dqkv);
    backward_in(
        cpu,
        precision,
        shape,
        q,
        k,
        v,
        out_ref,
        &lse,
        dout,
        options,
        dqkv_mut,
        &mut scratch,
    );
    Results { out, lse, dqkv }
}

/// Pseudorandom numbers in -scale..scale.
fn noise(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let key = Key::new(seed, "attention tests");
    (0..len as u64)
        .map(|i| (f64::from(key.block(i)[0]) / 2_147_483_648.0 - 1.0) as f32 * scale)
        .collect()
}

/// Interleaves rows of q, k and v heads.
fn join<T: Copy>(shape: Shape, parts: [&[T]; 3]) -> Vec<T> {
    let widths = [shape.heads, shape.kv_heads, shape.kv_heads].map(|n| n * shape.head_dim);
    let rows = 0..shape.sequences * shape.tokens;
    rows.flat_map(|r| (0..3).flat_map(move |i| parts[i][r * widths[i]..][..widths[i]].iter()))
        .copied()
        .collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn single() -> Cpu {
    Cpu::single(Isa::detect())
}

/// Rounding errors grow with the square root of the number of additions, of the largest element.
#[track_caller]
fn assert_close(name: &str, shape: Shape, got: &[f32], expected: &[f64]) {
    let additions = (shape.head_dim + shape.tokens * (shape.heads / shape.kv_heads)) as f64;
    let largest = expected.iter().fold(1.0, |max: f64, x| max.max(x.abs()));
    let tolerance = 4.0 * f64::from(f32::EPSILON) * additions.sqrt().max(4.0) * largest;
    assert_eq!(got.len(), expected.len());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(
            error <= tolerance,
            "{name}[{i}] of {shape:?}: {got} instead of {expected}, {error:.1e} > {tolerance:.1e}"
        );
    }
}

#[track_caller]
fn assert_matches_reference(case: &Case) {
    let got = case.run(&single());
    let (out, lse) = case.expected_forward();
    assert_close("out", case.shape, &got.out, &out);
    assert_close("lse", case.shape, &got.lse, &lse);
    assert_close("dqkv", case.shape, &got.dqkv, &case.expected_backward());
}

#[test]
fn every_length_and_group_matches_the_reference() {
    for tokens in TOKENS {
        for heads in HEADS {
            assert_matches_reference(&Case::new(2, tokens, heads, 16));
        }
    }
}

#[test]
fn every_head_dim_matches_the_reference() {
    for head_dim in [1, 2, 7, 15, 17, 32, 33, 64, 80, 127, 256] {
        assert_matches_reference(&Case::new(1, 70, (2, 1), head_dim));
    }
}

#[test]
fn dropped_probabilities_match_the_reference() {
    for tokens in [1, 2, 63, 65, 100] {
        assert_matches_reference(&Case::new(2, tokens, (4, 2), 8).dropping(0.3, 5));
    }
    let shape = (2, 100, (4, 2), 8);
    let kept = Case::new(shape.0, shape.1, shape.2, shape.3).run(&single());
    let none = Case::new(shape.0, shape.1, shape.2, shape.3).dropping(0.0, 5).run(&single());
    assert_eq!(bits(&kept.out), bits(&none.out), "a rate of zero drops nothing");
    assert_eq!(bits(&kept.dqkv), bits(&none.dqkv));
}

#[test]
fn gradients_match_central_differences() {
    assert_gradients(&Case::new(1, 5, (2, 1), 6));
    assert_gradients(&Case::new(1, 66, (3, 1), 6));
    assert_gradients(&Case::new(1, 66, (2, 2), 6).dropping(0.25, 3));
}

#[track_caller]
fn assert_gradients(case: &Case) {
    let shape = case.shape;
    let got = case.run(&single()).dqkv;
    let dout = wide(&case.dout);
    let inputs = [&case.q, &case.k, &case.v].map(|x| wide(x));
    let loss = |inputs: &[Vec<f64>; 3]| {
        let [q, k, v] = inputs;
        let (out, _) = reference::forward(&shape, q, k, v, 0, &case.options(), case.keep());
        out.iter().zip(&dout).map(|(o, d)| o * d).sum::<f64>()
    };
    let mut numeric = inputs.clone();
    let step = 1e-5;
    for part in 0..3 {
        // A sample of the elements, at a distance that meets all rows, heads and columns.
        for i in 0..inputs[part].len() {
            if i % 7 != 0 {
                numeric[part][i] = f64::NAN;
                continue;
            }
            let mut moved = inputs.clone();
            moved[part][i] += step;
            let above = loss(&moved);
            moved[part][i] -= 2.0 * step;
            numeric[part][i] = (above - loss(&moved)) / (2.0 * step);
        }
    }
    let [q, k, v] = &numeric;
    let numeric = join(shape, [q, k, v]);
    for reference in [wide(&got), case.expected_backward()] {
        for (i, (&got, &expected)) in reference.iter().zip(&numeric).enumerate() {
            if !expected.is_nan() {
                let error = (got - expected).abs();
                assert!(error < 2e-5, "element {i} of {shape:?}: {got}, not {expected}");
            }
        }
    }
}

#[test]
fn threads_and_instruction_sets_do_not_change_a_bit() {
    for (tokens, heads, head_dim) in [(1, (2, 1), 3), (65, (4, 2), 33), (150, (3, 1), 16)] {
        for case in [
            Case::new(2, tokens, heads, head_dim),
            Case::new(2, tokens, heads, head_dim).dropping(0.1, 9),
        ] {
            let expected = case.run(&Cpu::single(Isa::Portable));
            for isa in Isa::available() {
                for cpu in [Cpu::single(isa), two_threads(isa)] {
                    let got = case.run(&cpu);
                    let place = format!("{isa}, {} threads, {:?}", cpu.num_threads(), case.shape);
                    assert_eq!(bits(&got.out), bits(&expected.out), "out: {place}");
                    assert_eq!(bits(&got.lse), bits(&expected.lse), "lse: {place}");
                    assert_eq!(bits(&got.dqkv), bits(&expected.dqkv), "dqkv: {place}");
                }
            }
        }
    }
}

#[test]
fn one_buffer_of_joined_rows_gives_the_bits_of_three_dense_ones() {
    let case = Case::new(2, 70, (4, 2), 12);
    let qkv = join(case.shape, [&case.q, &case.k, &case.v]);
    let stride = 8 * 12;
    let rows = [0, 4 * 12, 6 * 12].map(|col| Rows { data: &qkv[col..], stride });
    let joined = run(&single(), case.shape, rows, &case.dout, &Options::CAUSAL);
    let dense = case.run(&single());
    assert_eq!(bits(&joined.out), bits(&dense.out));
    assert_eq!(bits(&joined.dqkv), bits(&dense.dqkv));
}

#[test]
fn decoding_with_a_cache_gives_the_bits_of_the_full_pass() {
    let case = Case::new(2, 140, (4, 2), 20);
    decode(&case, Precision::F32, &case.run(&single()));
    decode(&case, Precision::Bf16, &case.run_in_bf16(&single()));
}

fn decode(case: &Case, precision: Precision, full: &Results) {
    let Shape { sequences, tokens, heads, head_dim, .. } = case.shape;
    let width = heads * head_dim;
    for (first_query, num_queries) in
        [(0, 1), (0, 64), (1, 1), (37, 1), (63, 1), (63, 2), (64, 1), (50, 90), (128, 12), (139, 1)]
    {
        let shape = Shape { tokens: num_queries, ..case.shape };
        // The first rows of each sequence, as a cache would hold them.
        let cut = |x: &[f32], from: usize, to: usize| -> Vec<f32> {
            let row = x.len() / (sequences * tokens);
            x.chunks(row * tokens).flat_map(|x| &x[from * row..to * row]).copied().collect()
        };
        let end = first_query + num_queries;
        let q = cut(&case.q, first_query, end);
        let [k, v] = [&case.k, &case.v].map(|x| cut(x, 0, end));
        let kv_width = shape.kv_heads * head_dim;
        let mut out = vec![f32::NAN; q.len()];
        let mut lse = vec![f32::NAN; q.len() / head_dim];
        let mut scratch = vec![f32::NAN; scratch_len_in(precision, shape)];
        forward_in(
            &single(),
            precision,
            shape,
            Rows { data: &q, stride: width },
            Rows { data: &k, stride: kv_width },
            Rows { data: &v, stride: kv_width },
            first_query,
            &case.options,
            &mut out,
            &mut lse,
            &mut scratch,
        );
        let expected = cut(&full.out, first_query, end);
        assert_eq!(bits(&out), bits(&expected), "{precision}: {num_queries} from {first_query}");
        let expected: Vec<f32> =
            full.lse.chunks(tokens).flat_map(|x| &x[first_query..end]).copied().collect();
        assert_eq!(bits(&lse), bits(&expected), "{precision}: {num_queries} from {first_query}");
    }
}

#[test]
fn a_sequence_gives_equal_bits_alone_and_in_a_batch() {
    let both = Case::new(2, 90, (2, 1), 10).dropping(0.2, 4);
    let got = both.run(&single());
    let mut second = Case::new(1, 90, (2, 1), 10).dropping(0.2, 5);
    second.q = both.q[both.q.len() / 2..].to_vec();
    second.k = both.k[both.k.len() / 2..].to_vec();
    second.v = both.v[both.v.len() / 2..].to_vec();
    second.dout = both.dout[both.dout.len() / 2..].to_vec();
    let alone = second.run(&single());
    assert_eq!(bits(&alone.out), bits(&got.out[got.out.len() / 2..]));
    assert_eq!(bits(&alone.dqkv), bits(&got.dqkv[got.dqkv.len() / 2..]));
}

#[test]
fn future_keys_contribute_exactly_zero() {
    for boundary in [1, 16, 17, 31, 40, 64, 70] {
        let mut case = Case::new(1, 90, (2, 1), 8);
        let before = case.run(&single());
        for x in &mut case.k[boundary * 8..] {
            *x = -*x * 1e3;
        }
        for x in &mut case.v[boundary * 8..] {
            *x *= 1e20;
        }
        let after = case.run(&single());
        let past = boundary * 2 * 8;
        assert_eq!(bits(&before.out[..past]), bits(&after.out[..past]), "before {boundary}");
        assert_ne!(bits(&before.out[past..]), bits(&after.out[past..]), "from {boundary} on");
    }
}

#[test]
fn large_scores_stay_finite_and_nan_propagates() {
    let mut case = Case::new(1, 80, (1, 1), 16);
    for x in &mut case.q {
        *x *= 400.0;
    }
    let got = case.run(&single());
    assert!(
        got.out.iter().chain(&got.dqkv).all(|x| x.is_finite()),
        "large scores overflow nothing"
    );
    case.k[3 * 16] = f32::NAN;
    let got = case.run(&single());
    assert!(got.out[..3 * 16].iter().all(|x| x.is_finite()), "queries before it do not see it");
    assert!(got.out[3 * 16..].iter().all(|x| x.is_nan()), "all later queries are NaN");
}

#[test]
fn scratch_grows_with_the_tokens_and_not_with_their_square() {
    for heads in HEADS {
        let len = |tokens| scratch_len(Shape { tokens, ..Case::new(1, 1, heads, 64).shape }) as f64;
        let growth = (len(4096) - len(2048)) / (len(2048) - len(1024));
        assert!((growth - 2.0).abs() < 1e-6, "twice the tokens, {growth} times the growth");
    }
}

#[test]
#[should_panic(expected = "k has 60 elements")]
fn a_buffer_that_is_too_short_is_refused() {
    let mut case = Case::new(1, 8, (2, 1), 8);
    case.k.truncate(60);
    case.run(&single());
}

#[test]
fn shards_of_heads_are_bit_for_bit_those_of_all_heads() {
    let case = Case::new(2, 70, (6, 2), 16).dropping(0.3, 5);
    let whole = case.run(&single());
    let sharded = Shape { sequences: 2 * 2, heads: 3, kv_heads: 1, ..case.shape };
    // Rows of all heads, as rows of the first half of them, then of the second.
    let halves = |x: &[f32], width: usize| -> Vec<f32> {
        let half = |i: usize| {
            x.chunks_exact(width).flat_map(move |row| &row[i * width / 2..(i + 1) * width / 2])
        };
        half(0).chain(half(1)).copied().collect()
    };
    let (q_width, kv_width) = (6 * 16, 2 * 16);
    let [q, dout] = [&case.q, &case.dout].map(|x| halves(x, q_width));
    let [k, v] = [&case.k, &case.v].map(|x| halves(x, kv_width));
    let rows = [(&q, q_width), (&k, kv_width), (&v, kv_width)]
        .map(|(data, width)| Rows { data, stride: width / 2 });
    let heads = Heads { num: 6, first: 0, sequences: 2 };
    let dropout = case.dropout.map(|dropout| Dropout { heads, ..dropout });
    let options = Options { dropout: dropout.as_ref(), ..Options::CAUSAL };
    let got = run(&single(), sharded, rows, &dout, &options);
    assert_eq!(bits(&got.out), bits(&halves(&whole.out, q_width)));
    let of_shard = |shard: usize| -> Vec<f32> {
        let widths = [q_width, kv_width, kv_width];
        let parts = |row: &[f32]| -> Vec<f32> {
            let starts = [0, q_width, q_width + kv_width];
            let part = |i: usize| &row[starts[i] + shard * widths[i] / 2..][..widths[i] / 2];
            (0..3).flat_map(part).copied().collect()
        };
        whole.dqkv.chunks_exact(q_width + 2 * kv_width).flat_map(parts).collect()
    };
    assert_eq!(bits(&got.dqkv), bits(&[of_shard(0), of_shard(1)].concat()));
}

#[test]
fn threads_instruction_sets_and_matrix_units_do_not_change_a_bf16_bit() {
    for (tokens, heads, head_dim) in [(1, (2, 1), 3), (65, (4, 2), 33), (150, (3, 1), 64)] {
        let case = Case::new(2, tokens, heads, head_dim).dropping(0.1, 9);
        let expected = case.run_in_bf16(&Cpu::single(Isa::Portable));
        for isa in [Isa::detect(), Isa::Portable] {
            for cpu in [two_threads(isa), Cpu::single(isa).without_matrix_units()] {
                let got = case.run_in_bf16(&cpu);
                let place = format!("{isa}, {} threads, {:?}", cpu.num_threads(), case.shape);
                assert_eq!(bits(&got.out), bits(&expected.out), "out: {place}");
                assert_eq!(bits(&got.lse), bits(&expected.lse), "lse: {place}");
                assert_eq!(bits(&got.dqkv), bits(&expected.dqkv), "dqkv: {place}");
            }
        }
    }
}

#[test]
fn bf16_errors_are_those_of_eight_bit_operands() {
    for (tokens, heads, head_dim) in [(65, (4, 2), 32), (150, (3, 1), 64)] {
        let case = Case::new(1, tokens, heads, head_dim).dropping(0.1, 3);
        let got = case.run_in_bf16(&single());
        // Scores are sums of many rounded products, and errors of scores are errors of exponents.
        let relative_error = |got: &[f32], expected: &[f64]| {
            let pairs = || got.iter().map(|&x| f64::from(x)).zip(expected);
            let error: f64 = pairs().map(|(x, y)| (x - y).powi(2)).sum();
            (error / pairs().map(|(_, y)| y * y).sum::<f64>()).sqrt()
        };
        let (out, _) = case.expected_forward();
        let errors =
            [relative_error(&got.out, &out), relative_error(&got.dqkv, &case.expected_backward())];
        assert!(errors.iter().all(|error| (1e-4..3e-2).contains(error)), "{errors:?}");
    }
}

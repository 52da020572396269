//! Counter-based random numbers: a function of (seed, name, index).
//!
//! Block `i` of a stream is a keyed bijection of the number `i` (Philox4x32-10, Salmon et al. 2011,
//! "Parallel random numbers: as easy as 1, 2, 3"). Without state, any thread, worker or layout
//! computes the same numbers for any element. The seed is Philox's key; the name of the stream and
//! the numbers mixed in by [`Key::with`] fill the upper half of its counter.

use crate::Cpu;
use crate::math::scalar;
use crate::simd::{Kernel, Simd, VECTOR_LEN};

/// One stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    seed: [u32; 2],
    stream: u64,
}

impl Key {
    /// Stream named `stream` of a seed.
    pub fn new(seed: u64, stream: &str) -> Self {
        // FNV-1a, then a mix, because the raw hash of short names leaves the upper bits alike.
        let hash = stream.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { seed: split_u64(seed), stream: mix(hash) }
    }

    /// Sub-stream of a number, such as a step or a layer.
    pub fn with(self, number: u64) -> Self {
        // The order of two calls matters: mixing separates the old stream from the new number.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        Self { stream: mix(mix(self.stream.wrapping_add(GOLDEN)) ^ number), ..self }
    }

    /// The seed's halves and the stream: the operand of a device.
    pub(crate) const fn parts(self) -> ([u32; 2], u64) {
        (self.seed, self.stream)
    }

    /// Block number `counter` of the stream: four independent 32-bit words.
    #[inline]
    pub fn block(self, counter: u64) -> [u32; 4] {
        let [[a], [b], [c], [d]] = self.blocks::<1>(counter);
        [a, b, c, d]
    }

    /// Blocks `first` to `first + N - 1`, word by word: `blocks(first)[w][b]` is word `w` of block
    /// `first + b`. Inside a kernel the loops over `N = 16` become vector instructions.
    #[inline(always)]
    pub fn blocks<const N: usize>(self, first: u64) -> [[u32; N]; 4] {
        let (mut low, mut high) = ([0; N], [0; N]);
        for b in 0..N {
            [low[b], high[b]] = split_u64(first.wrapping_add(b as u64));
        }
        let [stream_low, stream_high] = split_u64(self.stream);
        philox([low, high, [stream_low; N], [stream_high; N]], self.seed)
    }

    /// Number `index` of the stream, uniform in `[0, 1)` with 52 bits.
    pub fn uniform_f64(self, index: u64) -> f64 {
        let [a, b, c, d] = self.block(index / 2);
        if index.is_multiple_of(2) { one_to_two(a, b) - 1.0 } else { one_to_two(c, d) - 1.0 }
    }

    /// Numbers `2 * first_pair` to `2 * (first_pair + N) - 1` of the stream, equal to
    /// [`uniform_f64`], in pairs. Inside a kernel the loops become vector instructions.
    ///
    /// [`uniform_f64`]: Self::uniform_f64
    #[inline(always)]
    pub fn uniform_pairs<const N: usize>(self, first_pair: u64) -> [[f64; 2]; N] {
        let [a, b, c, d] = self.blocks::<N>(first_pair);
        let mut pairs = [[0.0; 2]; N];
        for i in 0..N {
            pairs[i] = [one_to_two(a[i], b[i]) - 1.0, one_to_two(c[i], d[i]) - 1.0];
        }
        pairs
    }

    /// Number `index` of the stream, from the standard normal distribution.
    pub fn normal(self, index: u64) -> f32 {
        let [a, b, c, d] = self.block(index / 2);
        normal_pair(a, b, c, d)[usize::from(index % 2 == 1)]
    }
}

/// Fills `out` with elements `first_element ..` of a stream of normal numbers with standard
/// deviation `std`.
pub fn fill_normal(cpu: &Cpu, key: Key, first_element: u64, std: f32, out: &mut [f32]) {
    cpu.for_each_part(out, FILL_TASK, |i, out| {
        cpu.run(FillNormal { key, first: first_element + (i * FILL_TASK) as u64, std, out });
    });
}

/// Elements in one task.
pub(crate) const FILL_TASK: usize = 4096;

struct FillNormal<'a> {
    key: Key,
    first: u64,
    std: f32,
    out: &'a mut [f32],
}

impl Kernel for FillNormal<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // An odd start takes the second half of its pair; the rest is whole pairs, sixteen at once.
        let odd_start = usize::from(self.first % 2 == 1).min(self.out.len());
        let (head, pairs) = self.out.split_at_mut(odd_start);
        for x in head {
            *x = self.key.normal(self.first) * self.std;
        }
        for (i, out) in (0u64..).zip(pairs.chunks_mut(2 * VECTOR_LEN)) {
            let first_block = self.first.div_ceil(2) + i * VECTOR_LEN as u64;
            let [a, b, c, d] = self.key.blocks::<VECTOR_LEN>(first_block);
            let mut normal = [[0.0; 2]; VECTOR_LEN];
            for i in 0..VECTOR_LEN {
                normal[i] = normal_pair(a[i], b[i], c[i], d[i]);
            }
            for (x, normal) in out.iter_mut().zip(normal.as_flattened()) {
                *x = normal * self.std;
            }
        }
    }
}

/// Box-Muller transform: a uniform point of the unit square gives two independent normal numbers.
#[inline(always)]
fn normal_pair(a: u32, b: u32, c: u32, d: u32) -> [f32; 2] {
    // The first coordinate lies in (0, 1], so that its logarithm is finite.
    let radius = (-2.0 * scalar::ln_of_normal(2.0 - one_to_two(a, b))).sqrt();
    let (sin, cos) = scalar::sin_cos(std::f64::consts::TAU * (one_to_two(c, d) - 1.0));
    [(radius * cos) as f32, (radius * sin) as f32]
}

/// 52 random bits as the fraction of a number in `[1, 2)`.
#[inline(always)]
fn one_to_two(low: u32, high: u32) -> f64 {
    const ONE_BITS: u64 = 0x3ff0_0000_0000_0000;
    f64::from_bits(ONE_BITS | (u64::from(high) << 32 | u64::from(low)) >> 12)
}

/// Philox4x32-10 on `N` counters at a time: ten rounds of two wide products, keys by a Weyl
/// sequence.
///
/// The words are 64-bit elements whose upper halves are ignored, because vector units multiply the
/// lower halves of such elements; 32-bit elements would need widening in every round. Plain loops,
/// because the closures of `map` are not always inlined into the calling kernel.
#[inline(always)]
pub(crate) fn philox<const N: usize>(counter: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    const LOW: u64 = 0xffff_ffff;
    let mut wide = [[0; N]; 4];
    for w in 0..4 {
        for i in 0..N {
            wide[w][i] = u64::from(counter[w][i]);
        }
    }
    let [mut w0, mut w1, mut w2, mut w3] = wide;
    for _ in 0..10 {
        for i in 0..N {
            let product_0 = (w0[i] & LOW) * 0xd251_1f53;
            let product_2 = (w2[i] & LOW) * 0xcd9e_8d57;
            w0[i] = (product_2 >> 32) ^ w1[i] ^ u64::from(key[0]);
            w1[i] = product_2;
            w2[i] = (product_0 >> 32) ^ w3[i] ^ u64::from(key[1]);
            w3[i] = product_0;
        }
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    let mut out = [[0; N]; 4];
    for i in 0..N {
        for (out, word) in out.iter_mut().zip([w0[i], w1[i], w2[i], w3[i]]) {
            out[i] = word as u32;
        }
    }
    out
}

/// The low and the high half.
#[inline(always)]
fn split_u64(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// A bijection that spreads every input bit over all output bits (the finalizer of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

//! Every instruction set must equal the portable vectors, bit for bit.

use lockstep_tensor::Isa;
use lockstep_tensor::simd::{Kernel, Simd, VECTOR_LEN, dispatch};

struct AllOperations<'a> {
    a: &'a [f32; VECTOR_LEN],
    b: &'a [f32; VECTOR_LEN],
    c: &'a [f32; VECTOR_LEN],
}

impl Kernel for AllOperations<'_> {
    type Out = Vec<u64>;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u64> {
        let (a, b, c) = (s.load(self.a), s.load(self.b), s.load(self.c));
        let floats = [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.fma(a, b, c),
            s.sqrt(s.abs(a)),
            s.min(a, b),
            s.max(a, b),
            s.neg(a),
            s.select_lt(a, b, c, a),
            s.int_to_float(s.round_to_int(a)),
            s.from_bits(s.shift_left::<3>(s.bits(a))),
            s.from_bits(s.shift_right::<9>(s.bits(a))),
            s.from_bits(s.add_int(s.bits(a), s.splat_int(77))),
            s.from_bits(s.sub_int(s.bits(a), s.bits(b))),
            s.from_bits(s.and_int(s.bits(a), s.bits(b))),
            s.from_bits(s.or_int(s.bits(a), s.bits(b))),
            s.from_bits(s.xor_int(s.bits(a), s.bits(b))),
            s.load_partial(&self.a[..5]),
        ];
        let mut out: Vec<u64> =
            floats.iter().flat_map(|&v| s.to_array(v)).map(|x| u64::from(x.to_bits())).collect();
        out.push(u64::from(s.reduce_add(a).to_bits()));
        out.push(u64::from(s.reduce_max(a).to_bits()));
        let wide = s.fma_f64(s.widen(a), s.widen(b), s.add_f64(s.widen(c), s.splat_f64(0.1)));
        out.extend(s.to_array_f64(wide).map(f64::to_bits));
        out.push(s.reduce_add_f64(wide).to_bits());
        let mut partial = [9.0; VECTOR_LEN];
        s.store_partial(a, &mut partial[..11]);
        out.extend(partial.map(|x| u64::from(x.to_bits())));
        out
    }
}

#[test]
fn every_instruction_set_gives_the_portable_bits() {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f32::from(i16::try_from(state >> 17).unwrap()) - 16384.0) / 37.0
    };
    for _ in 0..200 {
        let [a, b, c] = std::array::from_fn(|_| std::array::from_fn(|_| next()));
        let expected = dispatch(Isa::Portable, AllOperations { a: &a, b: &b, c: &c });
        for isa in Isa::available() {
            let got = dispatch(isa, AllOperations { a: &a, b: &b, c: &c });
            assert_eq!(got, expected, "{isa}");
        }
    }
}

struct Transpose<'a>(&'a [[f32; VECTOR_LEN]; VECTOR_LEN]);

impl Kernel for Transpose<'_> {
    type Out = [[f32; VECTOR_LEN]; VECTOR_LEN];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Out {
        s.transpose(self.0.map(|row| s.load(&row))).map(|row| s.to_array(row))
    }
}

#[test]
fn transpose_swaps_rows_and_elements() {
    let square: [[f32; VECTOR_LEN]; VECTOR_LEN] =
        std::array::from_fn(|i| std::array::from_fn(|j| (i * 100 + j) as f32));
    for isa in Isa::available() {
        let transposed = dispatch(isa, Transpose(&square));
        for (i, row) in square.iter().enumerate() {
            for (j, x) in row.iter().enumerate() {
                assert_eq!(transposed[j][i].to_bits(), x.to_bits(), "{isa} row {i} element {j}");
            }
        }
    }
}

//! Vectors of sixteen elements in one 512-bit register.

use super::{Isa, Kernel, Simd, VECTOR_LEN, half_floats};
use std::arch::x86_64::{
    __m512, __m512bh, __m512d, __m512i, _CMP_LT_OQ, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0,
    _mm_prefetch, _mm256_loadu_si256, _mm256_storeu_si256, _mm512_add_epi32, _mm512_add_pd,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castps512_ps256,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_cvtph_ps, _mm512_cvtps_epi32,
    _mm512_cvtps_pd, _mm512_cvtps_ph, _mm512_div_ps, _mm512_extractf32x8_ps, _mm512_fmadd_pd,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_ps,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_set1_epi32, _mm512_set1_pd, _mm512_set1_ps,
    _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_slli_epi32, _mm512_sqrt_ps, _mm512_srli_epi32,
    _mm512_storeu_pd, _mm512_storeu_ps, _mm512_sub_epi32, _mm512_sub_ps, _mm512_unpackhi_ps,
    _mm512_unpacklo_ps, _mm512_xor_si512,
};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL; with `AMX`, also AVX-512 with bf16 and the
/// tiles of AMX.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const AMX: bool>(());

/// Runs a kernel with AVX-512 enabled.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Avx512::<false>(()))
}

/// Runs a kernel with AVX-512 and its bf16 enabled, which may use the tiles of AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub(super) fn run_amx<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Avx512::<true>(()))
}

/// Word 2i of the result is word i, word 2i + 1 is word 16 + i.
const INTERLEAVED: [u16; 32] = {
    let mut indices = [0; 32];
    let mut i = 0;
    while i < 16 {
        indices[2 * i] = i as u16;
        indices[2 * i + 1] = 16 + i as u16;
        i += 1;
    }
    indices
};

/// Every intrinsic below needs only the instructions whose presence `Avx512` proves, and every
/// pointer comes from a reference to exactly the memory that is read or written (prefetching does
/// neither).
macro_rules! with_avx512 {
    ($body:expr) => {
        // SAFETY: `self` proves that the CPU has the instructions, and pointers come from
        // references.
        unsafe { $body }
    };
}

impl<const AMX: bool> Simd for Avx512<AMX> {
    type V = __m512;
    type I = __m512i;
    type D = [__m512d; 2];
    const ISA: Isa = Isa::Avx512;
    const AMX: bool = AMX;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        if AMX { with_avx512!(run_amx(kernel)) } else { with_avx512!(run(kernel)) }
    }

    #[inline(always)]
    fn prefetch(self, x: *const f32) {
        with_avx512!(_mm_prefetch::<_MM_HINT_T0>(x.cast()));
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        with_avx512!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; VECTOR_LEN]) -> Self::V {
        with_avx512!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; VECTOR_LEN]) {
        with_avx512!(_mm512_storeu_ps(out.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        with_avx512!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        with_avx512!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        with_avx512!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        with_avx512!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        with_avx512!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        with_avx512!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        with_avx512!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        with_avx512!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        with_avx512!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }
    #[inline(always)]
    fn round_to_int(self, a: Self::V) -> Self::I {
        with_avx512!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn int_to_float(self, a: Self::I) -> Self::V {
        with_avx512!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: Self::V) -> Self::I {
        with_avx512!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn from_bits(self, a: Self::I) -> Self::V {
        with_avx512!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        with_avx512!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn load_int(self, x: &[i32; VECTOR_LEN]) -> Self::I {
        with_avx512!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        with_avx512!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        with_avx512!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I {
        with_avx512!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_int(self, a: Self::I, b: Self::I) -> Self::I {
        with_avx512!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor_int(self, a: Self::I, b: Self::I) -> Self::I {
        with_avx512!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shift_left<const N: u32>(self, a: Self::I) -> Self::I {
        with_avx512!(_mm512_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, a: Self::I) -> Self::I {
        with_avx512!(_mm512_srli_epi32::<N>(a))
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; VECTOR_LEN]) -> Self::I {
        with_avx512!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_u16(self, a: Self::I, out: &mut [u16; VECTOR_LEN]) {
        with_avx512!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(a)));
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; VECTOR_LEN]) -> Self::V {
        with_avx512!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, out: &mut [u16; VECTOR_LEN]) {
        with_avx512!(_mm256_storeu_si256(
            out.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v),
        ));
    }
    #[inline(always)]
    fn pair_neighbours(self, first: Self::V, second: Self::V) -> Self::I {
        if AMX {
            // SAFETY: `AMX` proves bf16, and both types are 512 plain bits.
            unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first)) }
        } else {
            half_floats::pair_neighbours(self, first, second)
        }
    }
    #[inline(always)]
    fn pair_elements(self, even: Self::V, odd: Self::V) -> Self::I {
        if AMX {
            let pairs = self.pair_neighbours(even, odd);
            with_avx512!(_mm512_permutexvar_epi16(
                _mm512_loadu_si512(INTERLEAVED.as_ptr().cast()),
                pairs
            ))
        } else {
            half_floats::pair_elements(self, even, odd)
        }
    }
    #[inline(always)]
    fn splat_f64(self, x: f64) -> Self::D {
        with_avx512!([_mm512_set1_pd(x); 2])
    }
    #[inline(always)]
    fn widen(self, v: Self::V) -> Self::D {
        with_avx512!([
            _mm512_cvtps_pd(_mm512_castps512_ps256(v)),
            _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(v)),
        ])
    }
    #[inline(always)]
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D {
        with_avx512!([_mm512_add_pd(a[0], b[0]), _mm512_add_pd(a[1], b[1])])
    }
    #[inline(always)]
    fn fma_f64(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        with_avx512!([_mm512_fmadd_pd(a[0], b[0], c[0]), _mm512_fmadd_pd(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn to_array_f64(self, a: Self::D) -> [f64; VECTOR_LEN] {
        let mut out = [0.0; VECTOR_LEN];
        with_avx512!(_mm512_storeu_pd(out.as_mut_ptr(), a[0]));
        with_avx512!(_mm512_storeu_pd(out[8..].as_mut_ptr(), a[1]));
        out
    }
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        assert!(x.len() <= VECTOR_LEN);
        let mask = ((1u32 << x.len()) - 1) as u16;
        with_avx512!(_mm512_maskz_loadu_ps(mask, x.as_ptr()))
    }
    #[inline(always)]
    fn store_partial(self, v: Self::V, out: &mut [f32]) {
        assert!(out.len() <= VECTOR_LEN);
        let mask = ((1u32 << out.len()) - 1) as u16;
        with_avx512!(_mm512_mask_storeu_ps(out.as_mut_ptr(), mask, v));
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::V; VECTOR_LEN]) -> [Self::V; VECTOR_LEN] {
        // Four rounds, each doubling the size of the squares that are already in place: pairs of
        // elements, pairs of pairs, then whole quarters of the registers, twice.
        let mut a = rows;
        for i in (0..VECTOR_LEN).step_by(2) {
            with_avx512!({
                a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            });
        }
        let mut b = a;
        for i in (0..VECTOR_LEN).step_by(4) {
            with_avx512!({
                b[i] = _mm512_shuffle_ps::<0x44>(a[i], a[i + 2]);
                b[i + 1] = _mm512_shuffle_ps::<0xEE>(a[i], a[i + 2]);
                b[i + 2] = _mm512_shuffle_ps::<0x44>(a[i + 1], a[i + 3]);
                b[i + 3] = _mm512_shuffle_ps::<0xEE>(a[i + 1], a[i + 3]);
            });
        }
        for i in 0..4 {
            with_avx512!({
                a[i] = _mm512_shuffle_f32x4::<0x88>(b[i], b[i + 4]);
                a[i + 4] = _mm512_shuffle_f32x4::<0xDD>(b[i], b[i + 4]);
                a[i + 8] = _mm512_shuffle_f32x4::<0x88>(b[i + 8], b[i + 12]);
                a[i + 12] = _mm512_shuffle_f32x4::<0xDD>(b[i + 8], b[i + 12]);
            });
        }
        for i in 0..4 {
            with_avx512!({
                b[i] = _mm512_shuffle_f32x4::<0x88>(a[i], a[i + 8]);
                b[i + 8] = _mm512_shuffle_f32x4::<0xDD>(a[i], a[i + 8]);
                b[i + 4] = _mm512_shuffle_f32x4::<0x88>(a[i + 4], a[i + 12]);
                b[i + 12] = _mm512_shuffle_f32x4::<0xDD>(a[i + 4], a[i + 12]);
            });
        }
        b
    }
}

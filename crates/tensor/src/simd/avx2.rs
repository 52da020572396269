//! Vectors of sixteen elements in two 256-bit registers.

use super::{Isa, Kernel, Simd, VECTOR_LEN};
use std::arch::x86_64::{
    __m128i, __m256, __m256d, __m256i, _CMP_LT_OQ, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0,
    _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128, _mm256_add_epi32, _mm256_add_pd,
    _mm256_add_ps, _mm256_and_si256, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_cvtps_epi32, _mm256_cvtps_pd, _mm256_cvtps_ph, _mm256_div_ps, _mm256_extractf128_ps,
    _mm256_fmadd_pd, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_ps,
    _mm256_min_ps, _mm256_mul_ps, _mm256_or_si256, _mm256_packus_epi32, _mm256_permute4x64_epi64,
    _mm256_set1_epi32, _mm256_set1_pd, _mm256_set1_ps, _mm256_sllv_epi32, _mm256_sqrt_ps,
    _mm256_srlv_epi32, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi32,
    _mm256_sub_ps, _mm256_xor_si256,
};

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Runs a kernel with AVX2, FMA and F16C enabled.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Avx2(()))
}

/// Every intrinsic below needs only the instructions whose presence `Avx2` proves, and every
/// pointer comes from a reference to exactly the memory that is read or written (prefetching does
/// neither).
macro_rules! with_avx2 {
    ($body:expr) => {
        // SAFETY: `self` proves that the CPU has the instructions, and pointers come from
        // references.
        unsafe { $body }
    };
}

/// Pointers to the two halves of sixteen 16-bit numbers.
#[inline(always)]
fn halves(x: &[u16; VECTOR_LEN]) -> [*const __m128i; 2] {
    [x[..8].as_ptr().cast(), x[8..].as_ptr().cast()]
}

/// Applies one intrinsic to both halves.
macro_rules! both {
    ($f:ident($a:expr)) => {
        with_avx2!([$f($a[0]), $f($a[1])])
    };
    ($f:ident($a:expr, $b:expr)) => {
        with_avx2!([$f($a[0], $b[0]), $f($a[1], $b[1])])
    };
    ($f:ident($a:expr, $b:expr, $c:expr)) => {
        with_avx2!([$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1])])
    };
}

impl Simd for Avx2 {
    type V = [__m256; 2];
    type I = [__m256i; 2];
    type D = [__m256d; 4];
    const ISA: Isa = Isa::Avx2;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        with_avx2!(run(kernel))
    }

    #[inline(always)]
    fn prefetch(self, x: *const f32) {
        with_avx2!(_mm_prefetch::<_MM_HINT_T0>(x.cast()));
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        with_avx2!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load(self, x: &[f32; VECTOR_LEN]) -> Self::V {
        with_avx2!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())])
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; VECTOR_LEN]) {
        with_avx2!(_mm256_storeu_ps(out.as_mut_ptr(), v[0]));
        with_avx2!(_mm256_storeu_ps(out[8..].as_mut_ptr(), v[1]));
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        both!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        both!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        let mask: Self::V = with_avx2!([
            _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]),
            _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]),
        ]);
        both!(_mm256_blendv_ps(no, yes, mask))
    }
    #[inline(always)]
    fn round_to_int(self, a: Self::V) -> Self::I {
        both!(_mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn int_to_float(self, a: Self::I) -> Self::V {
        both!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: Self::V) -> Self::I {
        both!(_mm256_castps_si256(a))
    }
    #[inline(always)]
    fn from_bits(self, a: Self::I) -> Self::V {
        both!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        with_avx2!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn load_int(self, x: &[i32; VECTOR_LEN]) -> Self::I {
        with_avx2!([
            _mm256_loadu_si256(x.as_ptr().cast()),
            _mm256_loadu_si256(x[8..].as_ptr().cast()),
        ])
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor_int(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn shift_left<const N: u32>(self, a: Self::I) -> Self::I {
        let count = self.splat_int(N.cast_signed());
        both!(_mm256_sllv_epi32(a, count))
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, a: Self::I) -> Self::I {
        let count = self.splat_int(N.cast_signed());
        both!(_mm256_srlv_epi32(a, count))
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; VECTOR_LEN]) -> Self::I {
        let [a, b] = halves(x);
        with_avx2!([
            _mm256_cvtepu16_epi32(_mm_loadu_si128(a)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(b)),
        ])
    }
    #[inline(always)]
    fn store_u16(self, a: Self::I, out: &mut [u16; VECTOR_LEN]) {
        with_avx2!({
            // Packing works within each half of a register, so the four quarters are reordered.
            let packed = _mm256_permute4x64_epi64::<0xD8>(_mm256_packus_epi32(a[0], a[1]));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), packed);
        });
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; VECTOR_LEN]) -> Self::V {
        let [a, b] = halves(x);
        with_avx2!([_mm256_cvtph_ps(_mm_loadu_si128(a)), _mm256_cvtph_ps(_mm_loadu_si128(b)),])
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, out: &mut [u16; VECTOR_LEN]) {
        let (first, second) = out.split_at_mut(VECTOR_LEN / 2);
        with_avx2!({
            let a = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]);
            let b = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]);
            _mm_storeu_si128(first.as_mut_ptr().cast(), a);
            _mm_storeu_si128(second.as_mut_ptr().cast(), b);
        });
    }
    #[inline(always)]
    fn splat_f64(self, x: f64) -> Self::D {
        with_avx2!([_mm256_set1_pd(x); 4])
    }
    #[inline(always)]
    fn widen(self, v: Self::V) -> Self::D {
        with_avx2!([
            _mm256_cvtps_pd(_mm256_castps256_ps128(v[0])),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v[0])),
            _mm256_cvtps_pd(_mm256_castps256_ps128(v[1])),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v[1])),
        ])
    }
    #[inline(always)]
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D {
        with_avx2!([
            _mm256_add_pd(a[0], b[0]),
            _mm256_add_pd(a[1], b[1]),
            _mm256_add_pd(a[2], b[2]),
            _mm256_add_pd(a[3], b[3]),
        ])
    }
    #[inline(always)]
    fn fma_f64(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        with_avx2!([
            _mm256_fmadd_pd(a[0], b[0], c[0]),
            _mm256_fmadd_pd(a[1], b[1], c[1]),
            _mm256_fmadd_pd(a[2], b[2], c[2]),
            _mm256_fmadd_pd(a[3], b[3], c[3]),
        ])
    }
    #[inline(always)]
    fn to_array_f64(self, a: Self::D) -> [f64; VECTOR_LEN] {
        let mut out = [0.0; VECTOR_LEN];
        for (out, a) in out.as_chunks_mut::<4>().0.iter_mut().zip(a) {
            with_avx2!(_mm256_storeu_pd(out.as_mut_ptr(), a));
        }
        out
    }
}

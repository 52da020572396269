//! Matrix units of the CPU (Intel AMX), through `asm!` because stable Rust has no intrinsics.
//!
//! A tile is sixteen rows of 64 bytes. One instruction multiplies a tile of sixteen rows of 32 bf16
//! by one of sixteen columns of 32 and adds the product to a tile of `f32`; see
//! [`crate::gemm::tiles`] for the order of its additions. The right tile holds *pairs*: its row p
//! has numbers 2p and 2p + 1 of each column side by side.
//!
//! Linux requires a permission request once per process, since tiles enlarge every thread's saved
//! state by 8 KiB; each thread then configures its tiles and should release them.
#![expect(unsafe_code, reason = "instructions without intrinsics, and one system call")]

use std::sync::OnceLock;

/// Proof that this CPU has AMX with bf16 and the AVX-512 that packing needs, and that this process
/// may use both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// Queries the CPU and the operating system, once per process.
    pub(crate) fn detect() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        FOUND.get_or_init(is_usable).then_some(Self(()))
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn is_usable() -> bool {
    false
}

/// Leaf 7, EDX: bit 22 means bf16 tiles, bit 24 tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const TILES: u32 = 1 << 22 | 1 << 24;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_usable() -> bool {
    use std::arch::x86_64::__cpuid_count;
    let has_vectors =
        crate::isa::Isa::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512bf16");
    has_vectors && __cpuid_count(7, 0).edx & TILES == TILES && request_permission()
}

/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_permission() -> bool {
    let status: i64;
    // SAFETY: the call reads no user memory and changes only permissions of later calls; a kernel
    // that does not support it, or refuses, returns an error.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") 158i64 => status,
            in("rdi") 0x1023i64,
            in("rsi") 18i64,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    status == 0
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use no_tiles::Tiles;
#[cfg(target_arch = "x86_64")]
pub(crate) use tiles::Tiles;

/// Stub for other processors, on which no [`Amx`] exists.
#[cfg(not(target_arch = "x86_64"))]
mod no_tiles {
    /// Never constructed.
    pub(crate) enum Tiles {}

    impl Tiles {
        pub(crate) unsafe fn new() -> Self {
            unreachable!("only x86-64 has AMX")
        }
        pub(crate) fn burst(&self, _: usize) {
            match *self {}
        }
        pub(crate) unsafe fn multiply(
            &self,
            _: bool,
            _: usize,
            _: *const f32,
            _: *const f32,
            _: *mut f32,
            _: usize,
            _: bool,
        ) {
            match *self {}
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::asm;
    use std::marker::PhantomData;

    /// Bytes from a block of the target to the prefetch of the next one: the 32 words of this
    /// block, plus an offset at which this address and the one 64 bytes later are in the two cache
    /// lines that only the next block touches, for any alignment.
    const NEXT: usize = 32 * 4 + 48;
    /// Rows of the next block that one step prefetches.
    const NEXT_ROWS: usize = 3;

    /// Tile configuration: eight tiles of full size.
    #[repr(C, align(64))]
    struct Config([u8; 64]);

    static WHOLE: Config = {
        let mut config = [0; 64];
        config[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            config[16 + 2 * tile] = 64;
            config[48 + tile] = 16;
            tile += 1;
        }
        Config(config)
    };

    /// Configured tiles of the calling thread; released when dropped.
    pub(crate) struct Tiles(PhantomData<*const ()>);

    #[expect(clippy::unused_self, reason = "`self` is the proof, not an operand")]
    impl Tiles {
        /// Configures the tiles.
        ///
        /// # Safety
        /// There must be an [`super::Amx`], and no other `Tiles` on this thread.
        #[inline(always)]
        pub(crate) unsafe fn new() -> Self {
            // SAFETY: the configuration is 64 valid bytes, and the caller guarantees the
            // instruction.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack)) };
            Self(PhantomData)
        }

        /// Four independent products of tiles, `num_rounds` times.
        #[inline(always)]
        pub(crate) fn burst(&self, num_rounds: usize) {
            // SAFETY: the tiles are configured as the instructions expect; they touch no memory.
            unsafe {
                asm!(
                    "tilezero tmm4",
                    "tilezero tmm5",
                    "test {k}, {k}",
                    "jz 3f",
                    "2:",
                    "tdpbf16ps tmm0, tmm4, tmm5",
                    "tdpbf16ps tmm1, tmm4, tmm5",
                    "tdpbf16ps tmm2, tmm4, tmm5",
                    "tdpbf16ps tmm3, tmm4, tmm5",
                    "dec {k}",
                    "jnz 2b",
                    "3:",
                    k = inout(reg) num_rounds => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _,
                    options(nomem, nostack),
                );
            }
        }

        /// `c (= or +=) a b` for 32 rows and 32 columns, or for the first 16 rows only.
        ///
        /// `a` and `b` hold, for each 32 products, two tiles of 256 words each; row i of `c` is
        /// `i * c_row` words from its start.
        ///
        /// # Safety
        /// `a` and `b` must be readable for `num_steps` (not zero) times 512 words, and the 32 (or
        /// 16) rows of `c` readable and writable for 32 words each, by no other thread meanwhile.
        #[inline(always)]
        pub(crate) unsafe fn multiply(
            &self,
            both_rows: bool,
            num_steps: usize,
            a: *const f32,
            b: *const f32,
            c: *mut f32,
            c_row: usize,
            add: bool,
        ) {
            debug_assert!(num_steps > 0);
            let c_row = c_row * size_of::<f32>();
            // SAFETY: the tiles are configured as the instructions expect, and the caller
            // guarantees the memory that they touch.
            unsafe {
                if both_rows {
                    multiply_2x2(num_steps, a, b, c, c_row, add);
                } else {
                    multiply_1x2(num_steps, a, b, c, c_row, add);
                }
            }
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: the caller of `new` guaranteed the instruction.
            unsafe { asm!("tilerelease", options(nomem, nostack)) };
        }
    }

    /// # Safety
    /// As for [`Tiles::multiply`]; `c_row` is in bytes.
    #[inline(always)]
    unsafe fn multiply_2x2(
        num_steps: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        c_row: usize,
        add: bool,
    ) {
        // SAFETY: guaranteed by the caller; prefetched addresses may be invalid.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 3f",
                "tileloadd tmm0, [{c} + {c_row}]",
                "tileloadd tmm1, [{c} + {c_row} + 64]",
                "tileloadd tmm2, [{lower} + {c_row}]",
                "tileloadd tmm3, [{lower} + {c_row} + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm4, [{a} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetchw [{next}]",
                "prefetchw [{next} + 64]",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetchw [{next} + {c_row}]",
                "prefetchw [{next} + {c_row} + 64]",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetchw [{next} + 2 * {c_row}]",
                "prefetchw [{next} + 2 * {c_row} + 64]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {next}, {next_step}",
                "add {a}, 2048", "add {b}, 2048",
                "dec {k}",
                "jnz 2b",
                "tilestored [{c} + {c_row}], tmm0",
                "tilestored [{c} + {c_row} + 64], tmm1",
                "tilestored [{lower} + {c_row}], tmm2",
                "tilestored [{lower} + {c_row} + 64], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                c = in(reg) c,
                lower = in(reg) c.byte_add(16 * c_row),
                c_row = in(reg) c_row,
                row = in(reg) 64usize,
                k = inout(reg) num_steps => _,
                add = in(reg) u32::from(add),
                next = inout(reg) c.wrapping_byte_add(NEXT) => _,
                next_step = in(reg) 32usize.div_ceil(num_steps).min(NEXT_ROWS) * c_row,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// As for [`Tiles::multiply`]; `c_row` is in bytes.
    #[inline(always)]
    unsafe fn multiply_1x2(
        num_steps: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        c_row: usize,
        add: bool,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 3f",
                "tileloadd tmm0, [{c} + {c_row}]",
                "tileloadd tmm1, [{c} + {c_row} + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {k}",
                "jnz 2b",
                "tilestored [{c} + {c_row}], tmm0",
                "tilestored [{c} + {c_row} + 64], tmm1",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                c = in(reg) c,
                c_row = in(reg) c_row,
                row = in(reg) 64usize,
                k = inout(reg) num_steps => _,
                add = in(reg) u32::from(add),
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

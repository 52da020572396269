//! Tiles on every kind of CPU against the scalar model.

use lockstep_tensor::internals::tiles::{LINES, STEP_LEN, TILE, TILE_LEN, multiply, step};
use lockstep_tensor::simd::VECTOR_LEN;
use lockstep_tensor::{Cpu, Isa};

/// Pseudorandom bits with a fixed seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A bf16 of random sign and digits whose exponent is up to `spread` around `center`.
    fn number(&mut self, center: i32, spread: i32) -> u32 {
        let bits = self.next();
        let exponent = center - spread + (bits % (2 * spread as u64 + 1)) as i32;
        let sign = (bits >> 40 & 1) << 15;
        (sign as u32) | (exponent.clamp(0, 255) as u32) << 7 | (bits >> 20 & 127) as u32
    }
}

/// Two panels of `steps` steps and a target, by the exponents of factors and target.
struct Case {
    left: Vec<f32>,
    right: Vec<f32>,
    target: Vec<f32>,
}

impl Case {
    fn new(noise: &mut Noise, steps: usize, factors: (i32, i32), target: (i32, i32)) -> Self {
        let pairs = |noise: &mut Noise| {
            let word = |_| {
                let (low, high) =
                    (noise.number(factors.0, factors.1), noise.number(factors.0, factors.1));
                f32::from_bits(high << 16 | low)
            };
            (0..steps * STEP_LEN).map(word).collect()
        };
        let (left, right) = (pairs(noise), pairs(noise));
        let start = |_| {
            let low = (noise.next() & 0xFFFF) as u32;
            f32::from_bits(noise.number(target.0, target.1) << 16 | low)
        };
        Self { left, right, target: (0..LINES * LINES).map(start).collect() }
    }

    /// Chains that pass the smallest normal number by amounts around half of its last place.
    fn around_the_smallest_number(noise: &mut Noise) -> Self {
        let mut case = Self::new(noise, 1, (0, 0), (0, 0));
        for pairs in [&mut case.left, &mut case.right, &mut case.target] {
            pairs.fill(0.0);
        }
        for tile in 0..2 {
            for (pair, line) in
                (0..VECTOR_LEN).flat_map(|pair| (0..TILE).map(move |line| (pair, line)))
            {
                let sign = (pair as u32 / 2 + line as u32) % 2;
                // One times the smallest number, then its opposite times about 2^-24.
                let (left, right) = match pair % 4 {
                    0 => (0x3F80 | sign << 15, 0x0080),
                    1 => {
                        let exponent = 127 - 20 - (noise.next() % 8) as u32;
                        let digits = (noise.next() & 127) as u32;
                        (
                            (1 - sign) << 15 | exponent << 7 | digits,
                            0x0080 | (noise.next() & 127) as u32,
                        )
                    }
                    _ => (0, 0),
                };
                case.left[tile * TILE_LEN + line * VECTOR_LEN + pair] = f32::from_bits(left);
                case.right[tile * TILE_LEN + pair * TILE + line] = f32::from_bits(right);
            }
        }
        case
    }

    fn expected(&self, add: bool) -> Vec<u32> {
        let half = |pairs: &[f32], at: usize, k: usize| {
            let bits = pairs[at].to_bits();
            f32::from_bits(if k.is_multiple_of(2) { bits << 16 } else { bits & 0xFFFF_0000 })
        };
        let element = |i: usize| {
            let (row, column) = (i / LINES, i % LINES);
            let start = if add { self.target[i] } else { 0.0 };
            (0..self.left.len() / STEP_LEN).fold(start, |sum, at| {
                let tile = |line: usize| at * STEP_LEN + line / TILE * TILE_LEN;
                let left =
                    |k: usize| half(&self.left, tile(row) + row % TILE * VECTOR_LEN + k / 2, k);
                let right =
                    |k: usize| half(&self.right, tile(column) + k / 2 * TILE + column % TILE, k);
                step(sum, left, right)
            })
        };
        (0..LINES * LINES).map(|i| bits(element(i))).collect()
    }

    fn run(&self, cpu: &Cpu, add: bool) -> Vec<u32> {
        let mut target = self.target.clone();
        multiply(cpu, &self.left, &self.right, &mut target, add);
        target.into_iter().map(bits).collect()
    }
}

/// Bits, with all NaN equal.
fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// Devices with every tile implementation of this CPU.
pub(super) fn cpus() -> Vec<Cpu> {
    let emulated = Isa::available().into_iter().map(|isa| Cpu::single(isa).without_matrix_units());
    emulated.chain([Cpu::single(Isa::detect())]).collect()
}

fn check(case: &Case, what: &str) {
    for add in [false, true] {
        let expected = case.expected(add);
        for cpu in cpus() {
            let place = (cpu.isa(), cpu.has_matrix_units());
            assert_eq!(case.run(&cpu, add), expected, "{what}, added: {add}, on {place:?}");
        }
    }
}

#[test]
fn matrix_units_and_vector_units_do_the_documented_operations() {
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    // Exponents of factors and of the target: usual numbers, wide ranges, results around the
    // smallest numbers, subnormal factors, everything at once, results beyond the largest number.
    for (factors, target) in [
        ((127, 4), (127, 4)),
        ((127, 30), (127, 20)),
        ((64, 4), (2, 2)),
        ((64, 15), (2, 3)),
        ((2, 2), (2, 2)),
        ((127, 128), (127, 125)),
        ((190, 4), (253, 2)),
    ] {
        for steps in [1, 3] {
            for _ in 0..4 {
                let case = Case::new(&mut noise, steps, factors, target);
                check(&case, &format!("{steps} steps of {factors:?} on {target:?}"));
            }
        }
    }
}

#[test]
fn results_count_as_subnormal_after_rounding() {
    let mut noise = Noise(0xD1B5_4A32_D192_ED03);
    for _ in 0..8 {
        check(&Case::around_the_smallest_number(&mut noise), "around the smallest number");
    }
}

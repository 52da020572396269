//! Dynamic tree of eight bits (Dettmers 2016, "8-Bit Approximations for Parallelism in Deep
//! Learning"): 256 values in seven decades, of which each has twice the linear steps of the smaller
//! one before it.

/// The values of the codes, ascending.
pub(crate) struct Map {
    pub(crate) values: [f32; 256],
    /// Upper end of each code but the last: values above it have a larger code.
    ends: [f32; 255],
    /// Code of zero.
    pub(crate) zero: u8,
}

/// The smallest value of a map; the largest is one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Smallest {
    /// Zero: a map without a sign, of twice as many steps.
    Zero,
    /// Minus one, in place of the negative of the smallest value above zero.
    MinusOne,
    /// The negative of the largest value below one, as `bitsandbytes` has it, whose values carry
    /// the rounding of the `f32` in which PyTorch computes them.
    AboveMinusOne,
}

/// Largest value of each decade.
const SCALES: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// Middle of step `index` of as many between 0.1 and 1, times `scale`, with the roundings of
/// `torch.linspace`: each boundary is rounded once, from the nearer end, and so is each operation
/// on them.
const fn rounded_step(index: usize, num_steps: usize, scale: f32) -> f64 {
    let step = (1.0 - 0.1_f32) / num_steps as f32;
    let boundary = rounded_boundary(index, num_steps, step);
    let next = rounded_boundary(index + 1, num_steps, step);
    (f32::midpoint(boundary, next) * scale) as f64
}

/// A boundary of steps. Products of two `f32` are exact in `f64`.
const fn rounded_boundary(index: usize, num_steps: usize, step: f32) -> f32 {
    if index < num_steps.div_ceil(2) {
        (0.1_f32 as f64 + step as f64 * index as f64) as f32
    } else {
        (1.0 - step as f64 * (num_steps - index) as f64) as f32
    }
}

impl Map {
    /// The map of 10⁻⁶ … 1 with that smallest value.
    pub(crate) const fn new(smallest: Smallest) -> Self {
        let (is_signed, has_minus_one) =
            (!matches!(smallest, Smallest::Zero), matches!(smallest, Smallest::MinusOne));
        let mut values = [0.0_f32; 256];
        // Values above zero are written from here on, those below zero before it.
        let zero = if is_signed { 127 } else { 0 };
        let first_negative = zero + if has_minus_one { 2 } else { 1 };
        let (mut next, mut decade, mut scale) = (zero + 1, 0, 1e-6_f64);
        while decade < 7 {
            let num_steps = if is_signed { 1 << decade } else { 2 << decade };
            let mut index = 0;
            while index < num_steps {
                let value = match smallest {
                    Smallest::AboveMinusOne => rounded_step(index, num_steps, SCALES[decade]),
                    _ => scale * (0.1 + 0.9 * (index as f64 + 0.5) / num_steps as f64),
                };
                values[next] = value as f32;
                if is_signed && next >= first_negative {
                    values[zero + first_negative - 1 - next] = -(value as f32);
                }
                next += 1;
                index += 1;
            }
            scale *= 10.0;
            decade += 1;
        }
        values[255] = 1.0;
        if has_minus_one {
            values[0] = -1.0;
        }
        let mut ends = [0.0; 255];
        let mut code = 0;
        while code < 255 {
            ends[code] = values[code].midpoint(values[code + 1]);
            code += 1;
        }
        Self { values, ends, zero: zero as u8 }
    }

    /// The code of the nearest value; of two as near, the smaller.
    pub(crate) fn code(&self, value: f32) -> u8 {
        let mut code = 0;
        let mut half = 128;
        while half > 0 {
            // As long as half a range of ends is below the value, the code is above them.
            if self.ends[code + half - 1] < value {
                code += half;
            }
            half /= 2;
        }
        code as u8
    }
}

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
    /// The negative of the largest value below one, as `bitsandbytes` has it.
    AboveMinusOne,
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
                let value = scale * (0.1 + 0.9 * (index as f64 + 0.5) / num_steps as f64);
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

//! Synthetic digits: ten glyphs under random rotation, slant, scale, shift, thickness and noise.
//!
//! An image is a function of (seed, index), so nothing is downloaded and any rank can draw any of
//! them. Every pixel is looked up in the glyph through the inverse of the distortion, with bilinear
//! interpolation.

use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;

/// Digits from 0 to 9.
pub(super) const NUM_CLASSES: usize = 10;
/// Width and height in pixels.
const SIDE: usize = 16;
/// Pixels of an image.
pub(super) const NUM_PIXELS: usize = SIDE * SIDE;

const GLYPH_WIDTH: usize = 5;
const GLYPH_HEIGHT: usize = 7;

/// A row of a glyph is five bits, the leftmost the most significant.
const GLYPHS: [[u8; GLYPH_HEIGHT]; NUM_CLASSES] = [
    [0b01110, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110],
    [0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110],
    [0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111],
    [0b11110, 0b00001, 0b00001, 0b01110, 0b00001, 0b00001, 0b11110],
    [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010],
    [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110],
    [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110],
    [0b11111, 0b00001, 0b00010, 0b00100, 0b00100, 0b01000, 0b01000],
    [0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110],
    [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100],
];

/// Pixels per dot of the glyph, before scaling.
const PIXELS_PER_DOT: f64 = 1.8;
/// Standard deviation of the noise of a pixel, where ink is 1 and paper 0.
const NOISE: f64 = 0.2;
/// Offset of every pixel, so that features are centred.
const MIDDLE: f64 = 0.3;

/// Draws sample `index` into `pixels` and returns its digit.
pub(super) fn draw(seed: u64, index: u64, pixels: &mut [f32]) -> usize {
    let key = Key::new(seed, "digits").with(index);
    let between = |number: u64, low: f64, high: f64| low + (high - low) * key.uniform_f64(number);
    let digit = (key.uniform_f64(0) * NUM_CLASSES as f64) as usize;
    let (sin, cos) = scalar::sin_cos(between(1, -0.3, 0.3));
    let slant = between(2, -0.3, 0.3);
    let scale = [between(3, 0.8, 1.2), between(4, 0.8, 1.2)].map(|s| s * PIXELS_PER_DOT);
    let shift = [between(5, -1.5, 1.5), between(6, -1.5, 1.5)];
    let ink = between(7, 0.8, 1.8);
    let noise = Key::new(seed, "digits.noise").with(index);
    let center = (SIDE - 1) as f64 / 2.0;
    for (pixel, value) in pixels.iter_mut().enumerate() {
        let (x, y) = ((pixel % SIDE) as f64, (pixel / SIDE) as f64);
        let (u, v) = (x - center - shift[0], y - center - shift[1]);
        let (u, v) = (cos * u + sin * v, cos * v - sin * u);
        let (u, v) = ((u + slant * v) / scale[0], v / scale[1]);
        let (column, row) = (u + 2.0, v + 3.0);
        let drawn = (ink * interpolate(digit, column, row)).min(1.0);
        *value = (drawn - MIDDLE + NOISE * f64::from(noise.normal(pixel as u64))) as f32;
    }
    digit
}

/// Bilinear interpolation between the dots of a glyph.
fn interpolate(digit: usize, column: f64, row: f64) -> f64 {
    let (left, top) = (column.floor(), row.floor());
    let (right_share, bottom_share) = (column - left, row - top);
    let dot = |column: f64, row: f64| {
        let inside = (0.0..GLYPH_WIDTH as f64).contains(&column)
            && (0.0..GLYPH_HEIGHT as f64).contains(&row);
        if !inside {
            return 0.0;
        }
        let bits = GLYPHS[digit][row as usize];
        f64::from(bits >> (GLYPH_WIDTH - 1 - column as usize) & 1)
    };
    let upper = (1.0 - right_share) * dot(left, top) + right_share * dot(left + 1.0, top);
    let lower =
        (1.0 - right_share) * dot(left, top + 1.0) + right_share * dot(left + 1.0, top + 1.0);
    (1.0 - bottom_share) * upper + bottom_share * lower
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_function_of_seed_and_index_and_all_digits_occur() {
        let draw = |seed, index| {
            let mut pixels = [0.0; NUM_PIXELS];
            let digit = super::draw(seed, index, &mut pixels);
            (digit, pixels.map(f32::to_bits))
        };
        assert_eq!(draw(1, 7), draw(1, 7));
        assert_ne!(draw(1, 7).1, draw(2, 7).1);
        let mut counts = [0; NUM_CLASSES];
        (0..1000).for_each(|index| counts[draw(1, index).0] += 1);
        assert!(counts.iter().all(|count| (60..160).contains(count)), "{counts:?}");
    }

    #[test]
    fn interpolation_is_exact_on_the_dots_and_between_them_elsewhere() {
        for (column, ink) in [(0.0, 0.0), (1.0, 1.0), (2.0, 1.0)] {
            assert!((interpolate(1, column, 1.0) - ink).abs() < 1e-12);
        }
        assert!((interpolate(1, 0.25, 1.0) - 0.25).abs() < 1e-12);
        assert!((interpolate(1, -5.0, 40.0)).abs() < 1e-12, "paper around the glyph");
    }
}

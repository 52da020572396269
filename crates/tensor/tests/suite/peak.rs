//! Bursts count the operations they do.

use lockstep_tensor::peak::{fma_burst, tile_burst};
use lockstep_tensor::{Cpu, Isa};

#[test]
fn a_burst_counts_two_operations_per_element_and_round() {
    for isa in Isa::available() {
        let cpu = Cpu::single(isa);
        assert!((fma_burst(&cpu, 10) - 2.0 * 10.0 * 12.0 * 16.0).abs() < 0.5);
        let tiles = tile_burst(&cpu, 10);
        assert_eq!(tiles.is_some(), cpu.has_matrix_units());
        let expected = 2.0 * 10.0 * 4.0 * f64::from(16 * 16 * 32);
        assert!(tiles.is_none_or(|flops| (flops - expected).abs() < 0.5));
    }
}

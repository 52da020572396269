//! What published training programs do beside their layout: facts about programs, not constants.

use crate::layout::Habits;

/// Habits of a program by its name, the row's notes and its precision.
pub(super) fn habits(program: &str, notes: &str, precision: &str) -> Habits {
    let (program, notes) = (program.to_lowercase(), notes.to_lowercase());
    // Sums of 16-bit floats with a short exponent stay 16 bits wide; others are kept in 32.
    let is_half = precision.to_lowercase().starts_with("fp16");
    let bytes = if is_half { 2 } else { 4 };
    let is_megatron = program.contains("megatron");
    let is_sharded = program.contains("torchtitan");
    Habits {
        gradient_bytes: bytes,
        wire_bytes: bytes,
        fp8: precision.to_lowercase().contains("float8")
            || precision.to_lowercase().contains("fp8"),
        overlap: !(is_megatron
            || notes.contains("no tp/pp/dp overlap")
            || notes.contains("no overlap")),
        fetches_by_tensor: program.contains("deepspeed"),
        zero_group: None,
        cuts_by_cost: program.contains("nanotron"),
        eager: program.contains("nanotron")
            || program.contains("internevo")
            || (is_sharded && !notes.contains("compile")),
    }
}

//! Names of the matrices of adapters, as `peft` ends them.

/// End of the name of A.
pub(super) const A: &str = ".lora_A.weight";
/// End of the name of B.
pub(super) const B: &str = ".lora_B.weight";

/// Whether a parameter of this name belongs to an adapter.
pub fn is_adapter(name: &str) -> bool {
    name.ends_with(A) || name.ends_with(B)
}

/// Whether a parameter of this name is the matrix B of an adapter, which starts at zero.
pub fn is_output(name: &str) -> bool {
    name.ends_with(B)
}

/// Names of A and B of the adapter beside a weight.
///
/// ```
/// let [a, _] = lockstep_model::lora::names_beside("model.layers.0.mlp.up_proj.weight").unwrap();
/// assert_eq!(a, "model.layers.0.mlp.up_proj.lora_A.weight");
/// ```
pub fn names_beside(weight: &str) -> Option<[String; 2]> {
    let module = weight.strip_suffix(".weight").filter(|_| !is_adapter(weight))?;
    Some([A, B].map(|end| format!("{module}{end}")))
}

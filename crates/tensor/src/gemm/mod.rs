//! Matrix products (being written).
/// How a product meets its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrite.
    Set,
    /// Add to what is there.
    Add,
}

//! Import: recipes from the configuration files of other frameworks.
//!
//! An import writes the TOML of a recipe that resolves, and lists every setting of the source that
//! has no counterpart, with the reason.
//!
//! - [`deepspeed`], which reads `ds_config.json`
//! - `draft`: settings with their sources, and the recipe made from them

pub mod deepspeed;

mod draft;

pub use draft::{ImportError, Imported, Unmapped};

//! Every knob of Lockstep: raw TOML becomes a proven [`Recipe`].

mod blame;
mod recipe;

pub use blame::Blame;
pub use recipe::{
    Data, Dtype, Family, IsaChoice, LrSchedule, Model, Numerics, Optim, OptimName, Precision,
    Recipe, Run, Source, Tokenizer, Train,
};

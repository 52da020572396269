//! Tests of predictions against worked numbers and published tables.

mod ground_truth;
mod oracles;
mod published;

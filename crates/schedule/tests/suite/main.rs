//! Tests of collective and pipeline schedules: proofs, properties, rejections and closed forms.

mod engine;

mod book;
mod every_schedule;
mod hierarchical;
mod mutants;
mod props;
mod rejections;
mod textbook;

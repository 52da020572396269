//! `lockstep data`: tokenizers and token shards.
//!
//! # Layout
//! - [`train_tokenizer`]: trains a BPE tokenizer
//! - [`tokenize`]: writes a corpus as token shards
//! - [`inspect`]: statistics of a shard folder; [`check`]: its checksums
//! - [`skew`]: label skew of client partitions
//! - [`corpus_args`]: corpus arguments; [`progress`]: the progress line

mod check;
mod corpus_args;
mod inspect;
mod progress;
mod skew;
mod tokenize;
mod train_tokenizer;

use crate::failure::Failure;
use lockstep_platform::World;

/// Prepare text for training: tokenizers and token shards
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    TrainTokenizer(train_tokenizer::Arguments),
    Tokenize(tokenize::Arguments),
    Inspect(inspect::Arguments),
    Check(check::Arguments),
    Skew(skew::Arguments),
}

pub(crate) fn run(command: &Command, world: &World) -> Result<(), Failure> {
    match command {
        Command::TrainTokenizer(arguments) => train_tokenizer::run(arguments, world),
        Command::Tokenize(arguments) => tokenize::run(arguments, world),
        Command::Inspect(arguments) => inspect::run(arguments, world),
        Command::Check(arguments) => check::run(arguments, world),
        Command::Skew(arguments) => skew::run(arguments, world),
    }
}

//! `lockstep data`: from text to tokens.
//!
//! # Layout
//! - [`train_tokenizer`]: a vocabulary from a corpus.
//! - [`tokenize`]: a corpus as shards of tokens.
//! - [`inspect`]: what a shard folder holds.
//! - [`check`]: whether it is still what was written.
//! - [`skew`]: how parts of the samples differ.
//! - [`corpus_args`]: how these commands are told their corpus.
//! - [`meter`]: a line that says how far the work has come.

mod check;
mod corpus_args;
mod inspect;
mod meter;
mod skew;
mod tokenize;
mod train_tokenizer;

use crate::failure::Failure;
use lockstep_platform::World;

/// Prepare text for training: vocabularies and shards of tokens
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

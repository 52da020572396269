//! `lockstep data`: cleaning of text, tokenizers and token shards.
//!
//! # Layout
//! - [`train_tokenizer`]: trains a BPE tokenizer
//! - [`tokenize`]: writes a corpus as token shards
//! - [`inspect`]: statistics of a shard folder; [`check`]: its checksums
//! - [`skew`]: label skew of client partitions
//! - [`dedup`]: removes repeated documents; [`filter`]: removes documents of low quality,
//!   by the rules that [`filter_rules`] prints
//! - [`corpus_args`]: corpus arguments; [`progress`]: the progress line

mod check;
mod corpus_args;
mod dedup;
mod filter;
mod filter_rules;
mod inspect;
mod progress;
mod skew;
mod tokenize;
mod train_tokenizer;

use crate::failure::Failure;
use lockstep_platform::World;

/// Prepare text for training: cleaning, tokenizers and token shards
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    TrainTokenizer(train_tokenizer::Arguments),
    Tokenize(tokenize::Arguments),
    Inspect(inspect::Arguments),
    Check(check::Arguments),
    Skew(skew::Arguments),
    Dedup(dedup::Arguments),
    Filter(filter::Arguments),
    FilterRules(filter_rules::Arguments),
}

pub(crate) fn run(command: &Command, world: &World) -> Result<(), Failure> {
    match command {
        Command::TrainTokenizer(arguments) => train_tokenizer::run(arguments, world),
        Command::Tokenize(arguments) => tokenize::run(arguments, world),
        Command::Inspect(arguments) => inspect::run(arguments, world),
        Command::Check(arguments) => check::run(arguments, world),
        Command::Skew(arguments) => skew::run(arguments, world),
        Command::Dedup(arguments) => dedup::run(arguments, world),
        Command::Filter(arguments) => filter::run(arguments, world),
        Command::FilterRules(arguments) => filter_rules::run(arguments),
    }
}

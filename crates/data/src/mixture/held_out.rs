//! Validation split of a mixture: held-out documents of every source by its weight.

use std::sync::Arc;

use lockstep_config::Recipe;

use super::reader::RowReader;
use super::source::{Content, Source};
use crate::corpus::{Run, TokenSpan};
use crate::documents::pieces::{PIECE_BYTES, cut};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// Reads as many held-out documents as the evaluations need. A source with fewer gives what it has.
pub(super) fn read(
    sources: &[Arc<Source>],
    weights: &[f64],
    tokenizer: &Tokenizer,
    recipe: &Recipe,
) -> Result<TokenSpan, DataError> {
    let limit = recipe.train.eval_batches * recipe.train.batch * recipe.model.context + 1;
    let total: f64 = weights.iter().sum();
    let mut run = Run::for_vocab(tokenizer.vocab());
    let mut ends = Vec::new();
    for (source, weight) in sources.iter().zip(weights) {
        let share = (limit as f64 * weight / total).ceil() as usize;
        read_source(source, share, &mut run, &mut ends)?;
    }
    Ok(TokenSpan::of_run(run, ends))
}

fn read_source(
    source: &Arc<Source>,
    limit: usize,
    run: &mut Run,
    ends: &mut Vec<u64>,
) -> Result<(), DataError> {
    let end = run.len() + limit;
    let mut reader = RowReader::validation(Arc::clone(source));
    while run.len() < end
        && let Some(document) = reader.next_document()?
    {
        match document.content {
            Content::Tokens(tokens) => run.extend(&tokens),
            Content::Text(text) => {
                encode(source, &text, end, run)?;
                run.extend(source.end_of_document.as_slice());
            }
        }
        ends.push(run.len() as u64);
    }
    Ok(())
}

/// Tokenizes a document piece by piece, up to the first piece that reaches `end`.
fn encode(source: &Source, text: &str, end: usize, run: &mut Run) -> Result<(), DataError> {
    let (mut rest, mut tokens) = (text, Vec::new());
    while !rest.is_empty() && run.len() < end {
        let len = if rest.len() > PIECE_BYTES { cut(rest, PIECE_BYTES) } else { rest.len() };
        tokens.clear();
        source.tokenizer.encode(&rest[..len], &mut tokens)?;
        run.extend(&tokens);
        rest = &rest[len..];
    }
    Ok(())
}

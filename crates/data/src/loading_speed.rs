//! Throughput of a recipe's data without a model: reading, tokenizing, mixing, and batches.

use std::time::Duration;

use lockstep_config::Recipe;
use lockstep_platform::World;
use serde::Serialize;

use crate::cursor::Cursor;
use crate::error::DataError;
use crate::placement::{DataRank, Feed};

/// Batches before the clock starts: they fill the queues and open every source.
const WARM_UP: u64 = 2;

/// Tokens a second of a loader that nothing waits for.
#[derive(Debug, Clone, Serialize)]
pub struct LoadingSpeed {
    /// Tokens of the batches a second.
    pub tokens_per_second: f64,
    /// Tokens that were loaded while the clock ran.
    pub tokens: u64,
    /// Steps whose batches were loaded while the clock ran.
    pub steps: u64,
    /// Time of these steps.
    pub seconds: f64,
}

/// Loads the batches of `recipe` as one worker would, for `duration` at least, and measures how
/// quickly they come.
pub fn measure_loading(
    recipe: &Recipe,
    world: &World,
    duration: Duration,
) -> Result<LoadingSpeed, DataError> {
    let mut feed = Feed::open(recipe, world, &DataRank::alone(recipe))?;
    let mut loader = feed.loader(world, Cursor::start())?;
    for _ in 0..WARM_UP {
        loader.next_batch()?;
    }
    let start = world.clock().now();
    let (mut tokens, mut steps) = (0_u64, 0_u64);
    loop {
        tokens += loader.next_batch()?.inputs.len() as u64;
        steps += 1;
        let elapsed = world.clock().now().saturating_sub(start);
        if elapsed >= duration {
            let seconds = elapsed.as_secs_f64();
            return Ok(LoadingSpeed {
                tokens_per_second: tokens as f64 / seconds,
                tokens,
                steps,
                seconds,
            });
        }
    }
}

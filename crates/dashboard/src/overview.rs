//! All runs of a table on one line of JSON: state, position, newest figures.

use crate::columns::Column;
use crate::runs::{Run, State, Table};
use serde::Serialize;

/// Steps whose median is the speed.
const RECENT_STEPS: usize = 100;

/// A run in the overview.
#[derive(Serialize)]
struct Overview<'a> {
    run: usize,
    /// The run in targets of requests.
    id: usize,
    name: &'a str,
    state: &'a State,
    version: u64,
    is_read: bool,
    step: u64,
    num_steps: Option<u64>,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    tokens_per_second: Option<f64>,
    step_seconds: Option<f64>,
    remaining_seconds: Option<f64>,
    mfu: Option<f64>,
    layout: Option<&'a str>,
}

/// All runs on one line of JSON.
pub(crate) fn overview(table: &Table) -> String {
    let runs = table.lock();
    let all: Vec<Overview<'_>> = runs.iter().enumerate().map(overview_of).collect();
    serde_json::to_string(&all).expect("our values are JSON")
}

fn overview_of((number, run): (usize, &Run)) -> Overview<'_> {
    let Run { history, .. } = run;
    let last = |column| finite(history.columns().last(column).map(|(_, value)| value));
    let median = |column| finite(history.columns().recent_median(column, RECENT_STEPS));
    Overview {
        run: number,
        id: number,
        name: &run.name,
        state: &run.state,
        version: run.version,
        is_read: run.is_read,
        step: history.step(),
        num_steps: history.started().map(|started| started.num_steps),
        loss: last(Column::Loss),
        validation_loss: finite(history.last_point("validation_loss").map(|(_, loss)| loss)),
        tokens_per_second: median(Column::TokensPerSecond),
        step_seconds: median(Column::StepSeconds),
        remaining_seconds: history.remaining_seconds().filter(|_| run.state.name == "running"),
        mfu: finite(history.last_point("mfu").map(|(_, mfu)| mfu)),
        layout: run.info.layout.as_deref(),
    }
}

/// JSON has no infinities.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

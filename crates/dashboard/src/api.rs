//! Targets of requests: the page, and figures of the runs as JSON.
//!
//! | target | answer |
//! |---|---|
//! | `/`, `/style.css`, `/app.js`, `/icon.svg` | the page |
//! | `/api/runs` | an overview of all runs |
//! | `/api/runs/N/curves?columns=600&first=1&last=99` | curves of run `N`, down-sampled |
//! | `/api/runs/N/details` | everything else about it |
//! | `/api/runs/N/explain` | its diagnosis |
//! | `/api/runs/N/planned` | the planned program of its step |
//! | `/api/live` | an overview whenever one changes, as Server-Sent Events |

use crate::columns::Column;
use crate::downsample::downsample;
use crate::guard::{Guard, parameter};
use crate::history::{Finished, LogLine, Rank, Sample, Started, TaskSpan};
use crate::live;
use crate::overview::overview;
use crate::page::{ASSETS, HEADERS};
use crate::runs::{RunInfo, Runs, Table};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lockstep_platform::World;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, oneshot, watch};

/// Columns of a curve, by default and at most.
const NUM_COLUMNS: usize = 600;
const MAX_COLUMNS: usize = 4000;
/// Most streams of changes at once.
const MAX_STREAMS: usize = 16;
/// Longest computation that a request waits for.
const COMPUTE_TIME: Duration = Duration::from_mins(2);

/// Sources of the answers.
#[derive(Clone)]
pub struct Answers {
    /// Services of the platform.
    pub world: World,
    /// Table of runs.
    pub table: Table,
    /// Computations of the caller.
    pub runs: Arc<dyn Runs>,
    /// Changes of the table.
    pub changes: watch::Receiver<u64>,
    /// Rules for requests.
    pub guard: Guard,
    streams: Arc<Semaphore>,
    computed: Arc<Mutex<Computed>>,
}

/// Newest computed answers, by run and question, each with the version of the run. The lock is held
/// while one is computed: there is one computation at a time.
type Computed = BTreeMap<(usize, &'static str), (u64, StatusCode, String)>;

impl Answers {
    /// Answers from a table.
    pub fn new(
        world: &World,
        table: Table,
        runs: Arc<dyn Runs>,
        changes: watch::Receiver<u64>,
        guard: Guard,
    ) -> Self {
        let (streams, computed) = (Arc::new(Semaphore::new(MAX_STREAMS)), Arc::default());
        Self { world: World::clone(world), table, runs, changes, guard, streams, computed }
    }

    /// The routes, behind the guard.
    pub fn router(self) -> Router {
        let mut router = Router::new();
        for asset in &ASSETS {
            let page =
                move || async move { ([(header::CONTENT_TYPE, asset.media_type)], asset.text) };
            router = router.route(asset.path, get(page));
        }
        router
            .route("/api/runs", get(list))
            .route("/api/runs/{run}/curves", get(curves))
            .route("/api/runs/{run}/details", get(details))
            .route("/api/runs/{run}/explain", get(explain))
            .route("/api/runs/{run}/planned", get(planned))
            .route("/api/live", get(follow))
            .fallback(|| async { refuse(StatusCode::NOT_FOUND, "there is no such page\n") })
            .layer(from_fn_with_state(self.clone(), check))
            .with_state(self)
    }
}

/// Lets a request pass the guard and adds the headers of every answer.
async fn check(Shared(answers): Shared<Answers>, request: Request, next: Next) -> Response {
    let checked = answers.guard.check(request.method(), request.uri(), request.headers());
    let mut response = match checked {
        Ok(_) => next.run(request).await,
        Err((status, line)) => refuse(status, line),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if checked.is_ok_and(|accepted| accepted.has_token)
        && let Ok(cookie) = HeaderValue::from_str(&answers.guard.set_cookie())
    {
        headers.insert(header::SET_COOKIE, cookie);
    }
    response
}

fn refuse(status: StatusCode, line: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], line).into_response()
}

fn json(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn no_run() -> Response {
    refuse(StatusCode::NOT_FOUND, "there is no run with this number\n")
}

async fn list(Shared(answers): Shared<Answers>) -> Response {
    json(StatusCode::OK, overview(&answers.table))
}

async fn curves(Shared(answers): Shared<Answers>, Path(run): Path<usize>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    let number = |name| parameter(query, name).and_then(|value| value.parse::<u64>().ok());
    let num_columns = number("columns").map_or(NUM_COLUMNS, |columns| columns as usize);
    let num_columns = num_columns.clamp(1, MAX_COLUMNS);
    let range = [number("first").unwrap_or(0), number("last").unwrap_or(u64::MAX)];
    let runs = answers.table.lock();
    let Some(run) = runs.get(run) else { return no_run() };
    let mut curves = Map::new();
    let mut add = |name: &str, points: Vec<(f64, f64)>| {
        let thinned = downsample(&points, num_columns);
        let numbers = |of: fn(&(f64, f64)) -> f64| thinned.iter().map(of).collect::<Vec<_>>();
        let (steps, values) = (numbers(|point| point.0), numbers(|point| point.1));
        // Digits beyond those of single precision would only lengthen the answer.
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        curves.insert(name.to_owned(), serde_json::json!({ "x": steps, "y": values }));
    };
    for column in Column::ALL {
        add(column.name(), run.history.columns().points(column, range));
    }
    for name in run.history.curve_names() {
        add(name, run.history.curve(name, range));
    }
    let answer = serde_json::json!({ "version": run.version, "curves": curves });
    drop(runs);
    json(StatusCode::OK, answer.to_string())
}

/// Everything about a run but its curves.
#[derive(Serialize)]
struct Details<'a> {
    version: u64,
    name: &'a str,
    folder: String,
    info: &'a RunInfo,
    started: Option<&'a Started>,
    finished: Option<&'a Finished>,
    attempts: u64,
    skipped_steps: u64,
    ranks: Vec<&'a Rank>,
    spans: Vec<&'a (u64, Vec<TaskSpan>)>,
    log: Vec<&'a LogLine>,
    samples: Vec<&'a Sample>,
}

async fn details(Shared(answers): Shared<Answers>, Path(run): Path<usize>) -> Response {
    let runs = answers.table.lock();
    let Some(run) = runs.get(run) else { return no_run() };
    let history = &run.history;
    let details = Details {
        version: run.version,
        name: &run.name,
        folder: run.folder.display().to_string(),
        info: &run.info,
        started: history.started(),
        finished: history.finished(),
        attempts: history.num_attempts(),
        skipped_steps: history.num_skipped(),
        ranks: history.ranks().collect(),
        spans: history.spans().collect(),
        log: history.log().collect(),
        samples: history.samples().collect(),
    };
    json(StatusCode::OK, serde_json::to_string(&details).expect("our values are JSON"))
}

async fn explain(Shared(answers): Shared<Answers>, Path(run): Path<usize>) -> Response {
    compute(answers, run, "explain", |runs, folder| runs.explain(&folder)).await
}

async fn planned(Shared(answers): Shared<Answers>, Path(run): Path<usize>) -> Response {
    compute(answers, run, "planned", |runs, folder| runs.planned_step(&folder)).await
}

/// Computes an answer on a thread of its own, or repeats that of an unchanged run.
async fn compute(
    answers: Answers,
    number: usize,
    question: &'static str,
    work: fn(&dyn Runs, PathBuf) -> Result<Value, String>,
) -> Response {
    let Some((folder, version)) =
        answers.table.lock().get(number).map(|run| (run.folder.clone(), run.version))
    else {
        return no_run();
    };
    let mut computed = answers.computed.lock().await;
    if let Some((of, status, text)) = computed.get(&(number, question))
        && *of == version
    {
        return json(*status, text.clone());
    }
    let (sender, receiver) = oneshot::channel();
    let runs = Arc::clone(&answers.runs);
    let body = move || {
        // A request that was given up leaves no receiver.
        let _ = sender.send(work(&*runs, folder));
    };
    let started = answers.world.threads().spawn(question, Box::new(body));
    let result = match started {
        Ok(_) => tokio::time::timeout(COMPUTE_TIME, receiver).await,
        Err(error) => Ok(Ok(Err(error.to_string()))),
    };
    let (status, value) = match result {
        Ok(Ok(Ok(value))) => (StatusCode::OK, value),
        Ok(Ok(Err(reason))) => (StatusCode::CONFLICT, serde_json::json!({ "reason": reason })),
        Ok(Err(_)) | Err(_) => {
            let reason = "the computation failed or took too long";
            (StatusCode::INTERNAL_SERVER_ERROR, serde_json::json!({ "reason": reason }))
        }
    };
    let text = value.to_string();
    computed.insert((number, question), (version, status, text.clone()));
    json(status, text)
}

async fn follow(Shared(answers): Shared<Answers>) -> Response {
    let Ok(permit) = Arc::clone(&answers.streams).try_acquire_owned() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n");
    };
    let body: Body = live::stream(answers.table, answers.changes, permit);
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

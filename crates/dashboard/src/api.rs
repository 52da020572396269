//! Targets of requests: the page, and figures of the runs as JSON.
//!
//! | target | answer |
//! |---|---|
//! | `/`, `/style.css`, `/app.js`, … | the page of the runs |
//! | `/plan`, `/lab` | the pages of the planner and of the lab, if the caller computes for them |
//! | `/api/runs` | an overview of all runs |
//! | `/api/runs/N/steps?first=1&last=99` | its steps, at most 10,000; page on with `first` |
//! | `/api/runs/N/curves?columns=600&first=1&last=99` | curves of run `N`, down-sampled |
//! | `/api/runs/N/stragglers` | waits of its ranks over evaluations |
//! | `/api/runs/N/spans?step=64` | tasks of its ranks in a sampled step |
//! | `/api/runs/N/details` | everything else about it |
//! | `/api/runs/N/explain` | its diagnosis |
//! | `/api/runs/N/planned` | the planned program of its step |
//! | `/api/plan/choices`, `/api/plan?model=llama3-8b&device=…` | models and devices; a plan |
//! | `/api/plan/scaling?model=llama3-8b&device=…` | throughput of the plan over devices |
//! | `/api/lab/choices`, `/api/lab/experiment?name=…&param=…` | experiments; a run of one |
//! | `/api/lab/real?name=stragglers` | a measurement of one on this machine |
//! | `/api/lab/walk?name=ring&ranks=4` | a schedule, round by round |
//! | `/api/live` | an overview whenever one changes, as Server-Sent Events |
//!
//! `N` is the number of a run in the overview, or its name where that is no number.

use crate::columns::Column;
use crate::connections::IsTrusted;
use crate::downsample::downsample;
use crate::guard::{Guard, parameter};
use crate::history::{Compressed, Finished, LogLine, Sample, Started};
use crate::live;
use crate::overview::overview;
use crate::page::{HEADERS, RUN_PAGE, SHARED, STYLE_SHEET, TOOL_PAGES, without_tools};
use crate::ranks::Rank;
use crate::runs::{Run, RunInfo, Runs, Table};
use crate::tools::{Query, Sources, Tools};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lockstep_platform::World;
use lockstep_plot::palette::style_sheet;
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
/// Most steps of an answer.
const MAX_STEPS: usize = 10_000;
/// Most streams of changes at once.
const MAX_STREAMS: usize = 16;
/// Longest computation that a request waits for.
const COMPUTE_TIME: Duration = Duration::from_mins(2);
/// Most requests of the planner and the lab that wait for their turn.
const MAX_WAITING: usize = 8;

/// Sources of the answers.
#[derive(Clone)]
pub struct Answers {
    /// Services of the platform.
    pub world: World,
    /// Table of runs.
    pub table: Table,
    /// Computations of the caller.
    pub sources: Sources,
    /// Changes of the table.
    pub changes: watch::Receiver<u64>,
    /// Rules for requests.
    pub guard: Guard,
    streams: Arc<Semaphore>,
    computed: Arc<Mutex<Computed>>,
    /// One computation of the planner or the lab at a time, and a bounded queue of others.
    tool: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// Newest computed answers, by run and question, each with the version of the run. The lock is held
/// while one is computed: there is one computation at a time.
type Computed = BTreeMap<(usize, &'static str), (u64, StatusCode, String)>;

impl Answers {
    /// Answers from a table.
    pub fn new(
        world: &World,
        table: Table,
        sources: Sources,
        changes: watch::Receiver<u64>,
        guard: Guard,
    ) -> Self {
        Self {
            world: World::clone(world),
            table,
            sources,
            changes,
            guard,
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            computed: Arc::default(),
            tool: Arc::new(Semaphore::new(1)),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        }
    }

    /// The routes, behind the guard.
    pub fn router(self) -> Router {
        let mut router = Router::new();
        let mut serve = |path, media_type, text: String| {
            let page = move || async move { ([(header::CONTENT_TYPE, media_type)], text) };
            router = std::mem::take(&mut router).route(path, get(page));
        };
        for asset in SHARED.iter().chain(&RUN_PAGE) {
            let has_links = self.sources.tools.is_some() || asset.path != "/";
            let text = if has_links { asset.text.to_owned() } else { without_tools(asset.text) };
            // The style sheet names colours; the palette of all charts says what they are.
            let palette = if asset.path == STYLE_SHEET { style_sheet() } else { String::new() };
            serve(asset.path, asset.media_type, palette + &text);
        }
        if self.sources.tools.is_some() {
            for asset in &TOOL_PAGES {
                serve(asset.path, asset.media_type, asset.text.to_owned());
            }
            router = router
                .route("/api/plan/choices", get(plan_choices))
                .route("/api/plan", get(plan))
                .route("/api/plan/scaling", get(scaling))
                .route("/api/lab/choices", get(lab_choices))
                .route("/api/lab/experiment", get(experiment))
                .route("/api/lab/real", get(measure))
                .route("/api/lab/walk", get(walk));
        }
        router
            .route("/api/runs", get(list))
            .route("/api/runs/{run}/steps", get(steps))
            .route("/api/runs/{run}/curves", get(curves))
            .route("/api/runs/{run}/stragglers", get(stragglers))
            .route("/api/runs/{run}/spans", get(spans))
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
        Ok(_) => {
            if let Some(is_trusted) = request.extensions().get::<IsTrusted>() {
                is_trusted.set();
            }
            next.run(request).await
        }
        Err((status, line)) => refuse(status, line),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if checked.is_ok_and(|accepted| accepted.opens_page)
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
    refuse(StatusCode::NOT_FOUND, "there is no run with this number or name\n")
}

async fn list(Shared(answers): Shared<Answers>) -> Response {
    json(StatusCode::OK, overview(&answers.table))
}

/// Number of the run that a target names: its number as the overview prints it, or its name.
fn number_of(runs: &[Run], id: &str) -> Option<usize> {
    let is_number = |number: &usize| number.to_string() == id && *number < runs.len();
    let by_number = id.parse().ok().filter(is_number);
    by_number.or_else(|| runs.iter().position(|run| run.name == id))
}

/// A whole number of a query.
fn number(uri: &Uri, name: &str) -> Option<u64> {
    parameter(uri.query().unwrap_or_default(), name)?.parse().ok()
}

/// First and last step that a query asks for.
fn range(uri: &Uri) -> [u64; 2] {
    [number(uri, "first").unwrap_or(0), number(uri, "last").unwrap_or(u64::MAX)]
}

/// The steps of a run for scripts: a list of objects, each with the figures of a step.
async fn steps(Shared(answers): Shared<Answers>, Path(id): Path<String>, uri: Uri) -> Response {
    let runs = answers.table.lock();
    let Some(run) = number_of(&runs, &id) else { return no_run() };
    let steps: Vec<_> = runs[run].history.columns().steps(range(&uri)).take(MAX_STEPS).collect();
    json(StatusCode::OK, serde_json::to_string(&steps).expect("our values are JSON"))
}

async fn curves(Shared(answers): Shared<Answers>, Path(id): Path<String>, uri: Uri) -> Response {
    let num_columns = number(&uri, "columns").map_or(NUM_COLUMNS, |columns| columns as usize);
    let num_columns = num_columns.clamp(1, MAX_COLUMNS);
    let range = range(&uri);
    let runs = answers.table.lock();
    let Some(run) = number_of(&runs, &id).map(|number| &runs[number]) else { return no_run() };
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
    compressed: Option<&'a Compressed>,
    sampled_steps: Vec<u64>,
    staleness: BTreeMap<u64, u64>,
    log: Vec<&'a LogLine>,
    samples: Vec<&'a Sample>,
}

async fn details(Shared(answers): Shared<Answers>, Path(id): Path<String>) -> Response {
    let runs = answers.table.lock();
    let Some(run) = number_of(&runs, &id).map(|number| &runs[number]) else { return no_run() };
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
        ranks: history.ranks().iter().collect(),
        compressed: history.compressed(),
        sampled_steps: history.sampled_steps().collect(),
        staleness: history.staleness(),
        log: history.log().collect(),
        samples: history.samples().collect(),
    };
    json(StatusCode::OK, serde_json::to_string(&details).expect("our values are JSON"))
}

/// Waits of the ranks from evaluation to evaluation.
async fn stragglers(Shared(answers): Shared<Answers>, Path(id): Path<String>) -> Response {
    let runs = answers.table.lock();
    let Some(run) = number_of(&runs, &id).map(|number| &runs[number]) else { return no_run() };
    let map = run.history.ranks().straggler_map();
    json(StatusCode::OK, serde_json::to_string(&map).expect("our values are JSON"))
}

/// Ranks with their tasks in a sampled step: id, action, start and duration.
async fn spans(Shared(answers): Shared<Answers>, Path(id): Path<String>, uri: Uri) -> Response {
    let runs = answers.table.lock();
    let Some(run) = number_of(&runs, &id).map(|number| &runs[number]) else { return no_run() };
    let spans = run.history.spans_of(number(&uri, "step").unwrap_or(0));
    json(StatusCode::OK, serde_json::to_string(&spans).expect("our values are JSON"))
}

async fn explain(Shared(answers): Shared<Answers>, Path(id): Path<String>) -> Response {
    compute(answers, &id, "explain", |runs, folder| runs.explain(&folder)).await
}

async fn planned(Shared(answers): Shared<Answers>, Path(id): Path<String>) -> Response {
    compute(answers, &id, "planned", |runs, folder| runs.planned_step(&folder)).await
}

/// Computes an answer on a thread of its own, or repeats that of an unchanged run.
async fn compute(
    answers: Answers,
    id: &str,
    question: &'static str,
    work: fn(&dyn Runs, PathBuf) -> Result<Value, String>,
) -> Response {
    let found = {
        let runs = answers.table.lock();
        number_of(&runs, id).map(|at| (at, runs[at].folder.clone(), runs[at].version))
    };
    let Some((number, folder, version)) = found else { return no_run() };
    let mut computed = answers.computed.lock().await;
    if let Some((of, status, text)) = computed.get(&(number, question))
        && *of == version
    {
        return json(*status, text.clone());
    }
    let runs = Arc::clone(&answers.sources.runs);
    let (status, value) = on_a_thread(&answers.world, question, move || work(&*runs, folder)).await;
    let text = value.to_string();
    computed.insert((number, question), (version, status, text.clone()));
    json(status, text)
}

/// Computes on a thread of its own.
async fn on_a_thread(
    world: &World,
    name: &'static str,
    work: impl FnOnce() -> Result<Value, String> + Send + 'static,
) -> (StatusCode, Value) {
    let (sender, receiver) = oneshot::channel();
    let body = move || {
        // A request that was given up leaves no receiver.
        let _ = sender.send(work());
    };
    let result = match world.threads().spawn(name, Box::new(body)) {
        Ok(_) => tokio::time::timeout(COMPUTE_TIME, receiver).await,
        Err(error) => Ok(Ok(Err(error.to_string()))),
    };
    match result {
        Ok(Ok(Ok(value))) => (StatusCode::OK, value),
        Ok(Ok(Err(reason))) => (StatusCode::CONFLICT, serde_json::json!({ "reason": reason })),
        Ok(Err(_)) | Err(_) => {
            let reason = "the computation failed or took too long";
            (StatusCode::INTERNAL_SERVER_ERROR, serde_json::json!({ "reason": reason }))
        }
    }
}

async fn plan_choices(Shared(answers): Shared<Answers>) -> Response {
    choices(&answers, |tools| tools.plan_choices())
}

async fn lab_choices(Shared(answers): Shared<Answers>) -> Response {
    choices(&answers, |tools| tools.lab_choices())
}

fn choices(answers: &Answers, of: fn(&dyn Tools) -> Value) -> Response {
    let tools = answers.sources.tools.as_deref();
    tools.map_or_else(no_tools, |tools| json(StatusCode::OK, of(tools).to_string()))
}

async fn plan(Shared(answers): Shared<Answers>, uri: Uri) -> Response {
    compute_with(answers, uri, "plan", |tools, query| tools.plan(query)).await
}

async fn scaling(Shared(answers): Shared<Answers>, uri: Uri) -> Response {
    compute_with(answers, uri, "scaling", |tools, query| tools.scaling(query)).await
}

async fn experiment(Shared(answers): Shared<Answers>, uri: Uri) -> Response {
    compute_with(answers, uri, "experiment", |tools, query| tools.experiment(query)).await
}

async fn measure(Shared(answers): Shared<Answers>, uri: Uri) -> Response {
    compute_with(answers, uri, "measure", |tools, query| tools.measure(query)).await
}

async fn walk(Shared(answers): Shared<Answers>, uri: Uri) -> Response {
    compute_with(answers, uri, "walk", |tools, query| tools.walk(query)).await
}

fn no_tools() -> Response {
    refuse(StatusCode::NOT_FOUND, "this server has no planner and no lab\n")
}

/// Computes the answer for a page of the planner or the lab, after those requested before.
async fn compute_with(
    answers: Answers,
    uri: Uri,
    name: &'static str,
    work: fn(&dyn Tools, &Query) -> Result<Value, String>,
) -> Response {
    let Some(tools) = answers.sources.tools.clone() else { return no_tools() };
    let Some(query) = Query::parse(uri.query().unwrap_or_default()) else {
        return refuse(StatusCode::BAD_REQUEST, "the query is no text\n");
    };
    let Ok(_waiting) = answers.waiting.try_acquire() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many computations wait\n");
    };
    let turn = Arc::clone(&answers.tool).acquire_owned();
    let Ok(Ok(turn)) = tokio::time::timeout(COMPUTE_TIME, turn).await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "another computation takes too long\n");
    };
    let (status, value) = on_a_thread(&answers.world, name, move || {
        let result = work(&*tools, &query);
        // The turn ends with the computation, also where its request was given up.
        drop(turn);
        result
    })
    .await;
    json(status, value.to_string())
}

async fn follow(Shared(answers): Shared<Answers>) -> Response {
    let Ok(permit) = Arc::clone(&answers.streams).try_acquire_owned() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n");
    };
    let body: Body = live::stream(answers.table, answers.changes, permit);
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

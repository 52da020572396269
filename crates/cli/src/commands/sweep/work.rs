//! What the processes of a sweep do: one rung of it, and how far each of them is.

use super::plan::Plan;
use super::pool;
use super::store::{Outcome, Status, Store};
use super::{Arguments, figure::Figure};
use crate::failure::Failure;
use crate::workers;
use lockstep_config::Blame;
use lockstep_platform::World;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Between two lines about runs that are under way.
const TELL: Duration = Duration::from_secs(10);

/// The end of a run's events, in which the last step is found.
const TAIL_BYTES: u64 = 4 << 10;

/// See the module's text.
pub(super) struct Work<'a> {
    arguments: &'a Arguments,
    world: &'a World,
    plan: &'a Plan,
    store: &'a Store<'a>,
    rung: usize,
    done: Vec<(usize, Outcome)>,
    num_runs: usize,
    /// By the clock, as all times.
    last_told: Duration,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        arguments: &'a Arguments,
        world: &'a World,
        plan: &'a Plan,
        store: &'a Store<'a>,
        rung: usize,
    ) -> Self {
        let last_told = world.clock().now();
        Self { arguments, world, plan, store, rung, done: Vec::new(), num_runs: 0, last_told }
    }

    /// Carries out what is not done yet; what came of all of them, done now or before.
    pub(super) fn carry_out(&mut self, runs: &[usize]) -> Result<Vec<(usize, Outcome)>, Failure> {
        self.num_runs = runs.len();
        let mut left = Vec::new();
        for run in runs {
            match self.store.outcome(&self.plan.runs[*run], self.rung)? {
                Some(outcome) => self.done.push((*run, outcome)),
                None => left.push(*run),
            }
        }
        if !self.done.is_empty() && !left.is_empty() {
            let (done, all) = (self.done.len(), self.num_runs);
            self.tell(&format!("going on: {done} of {all} are done\n"));
        }
        pool::run_all(self.world, self.plan.jobs, &left, self)?;
        Ok(std::mem::take(&mut self.done))
    }

    fn tell(&self, line: &str) {
        if !self.arguments.quiet {
            workers::tell(line);
        }
    }

    fn target(&self, run: usize) -> u64 {
        self.plan.rungs[self.rung].steps(self.plan.runs[run].steps)
    }
}

impl pool::Work for Work<'_> {
    fn begin(&mut self, index: usize) -> Result<Vec<OsString>, Failure> {
        let (plan, target) = (self.plan, self.target(index));
        let run = &plan.runs[index];
        let checkpoint = self.store.make_room(run, self.rung)?;
        let before = self.rung.checked_sub(1).map(|before| self.store.run_dir(run, before));
        let mut sets = run.sets(&plan.keys);
        if let Some(threads) = plan.threads[index] {
            sets.push(format!("run.threads={threads}"));
        }
        sets.push(format!("run.dir={}", self.store.run_dir(run, self.rung).display()));
        // Figures instead of a sample of text, which takes time; both go nowhere.
        let mut words = ["train", "--quiet", "--json"].map(str::to_owned).to_vec();
        words.extend(self.arguments.recipe.with(&sets).typed());
        if target < run.steps {
            words.extend(["--stop-after".to_owned(), target.to_string()]);
        }
        let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        if let Some(dir) = checkpoint.or(before) {
            words.extend(["--resume".into(), dir.into_os_string()]);
        }
        Ok(words)
    }

    fn end(&mut self, run: usize, code: u8, words: &str) -> Result<(), Failure> {
        let configuration = &self.plan.runs[run];
        let outcome = match code {
            0 => self.store.finish(configuration, self.rung)?,
            code if code == Blame::Diverged.exit_code() => {
                self.store.keep(configuration, self.rung, &Outcome::diverged(words))?
            }
            code => {
                let name = &configuration.name;
                let sets = configuration.sets(&self.plan.keys).join(" ");
                let lines: Vec<_> =
                    words.lines().map(|line| format!("run {name} ({sets}): {line}")).collect();
                self.tell(&format!("run {name} failed; no more are begun\n"));
                let advice = "the results so far are kept; the same command goes on";
                let text = format!("{}\n{advice}", lines.join("\n"));
                return Err(Failure::with_code(code, text));
            }
        };
        let by = self.plan.by;
        let sets = configuration.sets(&self.plan.keys).join(" ");
        let name = configuration.name.clone();
        let result = told(by, &outcome);
        self.done.push((run, outcome));
        let (done, all) = (self.done.len(), self.num_runs);
        self.tell(&format!("{done}/{all}  {name}  {sets}  {result}\n"));
        Ok(())
    }

    fn look(&mut self, running: &[usize]) {
        if self.arguments.quiet || self.world.clock().since(self.last_told) < TELL {
            return;
        }
        self.last_told = self.world.clock().now();
        let of = |run: &usize| {
            let events = self.store.run_dir(&self.plan.runs[*run], self.rung).join("events.jsonl");
            let step = last_step(self.world, &events).unwrap_or(0);
            format!("{} step {step} of {}", self.plan.runs[*run].name, self.target(*run))
        };
        let all: Vec<String> = running.iter().map(of).collect();
        if !all.is_empty() {
            workers::tell(&format!("under way: {}\n", all.join(", ")));
        }
    }
}

fn told(by: Figure, outcome: &Outcome) -> String {
    match (outcome.status, outcome.figures.get(by.name())) {
        (Status::Diverged, _) => format!("diverged at step {}", outcome.steps),
        (Status::Done, Some(value)) => format!("{} {}", by.words(), by.shown(*value)),
        (Status::Done, None) => format!("no finite {}", by.words()),
    }
}

/// The last step that the events of a run tell of.
fn last_step(world: &World, events: &Path) -> Option<u64> {
    let file = world.files().open(events).ok()?;
    let offset = file.num_bytes().saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(file.num_bytes() - offset).ok()?];
    file.read_exact_at(offset, &mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let number =
        tail.rsplit("\"event\":\"step\",\"step\":").next().filter(|n| n.len() < tail.len());
    number?.split(',').next()?.parse().ok()
}

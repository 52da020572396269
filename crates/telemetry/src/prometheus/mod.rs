//! Prometheus endpoint: the newest value of every metric in the text format 0.0.4.
//!
//! The step loop stores numbers in a table; a thread of its own answers scrapes from it
//! (`server`). The lock of the table covers plain stores and reads only, never a call of the
//! platform, so a slow scraper cannot hold up a step.

mod server;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockstep_platform::World;

use crate::{Event, Label, Metric, Scalar, Sink, Stamped, TelemetryError, visit_scalars};
use server::Server;

/// Name of the sink in messages.
const NAME: &str = "Prometheus";

/// Values of a run.
#[derive(Default)]
struct Table {
    /// Newest value of each metric without labels, in the order of [`Metric::ALL`].
    values: Vec<Option<f64>>,
    /// Newest values with labels, by metric and text of the labels.
    labelled: BTreeMap<(Metric, String), f64>,
    /// Labels of the run's information.
    info: String,
    num_steps: u64,
    num_skipped: u64,
}

/// The endpoint.
pub struct Prometheus {
    table: Arc<Mutex<Table>>,
    server: Server,
}

impl Prometheus {
    /// Listens at an address, `host:port`.
    pub fn listen(world: &World, addr: &str) -> Result<Self, TelemetryError> {
        let values = vec![None; Metric::ALL.len()];
        let table = Arc::new(Mutex::new(Table { values, ..Table::default() }));
        let page = {
            let table = Arc::clone(&table);
            move || lock(&table).render()
        };
        let server = Server::start(world, addr, Box::new(page)).map_err(|reason| {
            TelemetryError::Write { sink: format!("{NAME} at {addr}"), reason }
        })?;
        Ok(Self { table, server })
    }

    /// Address of the endpoint, with its port.
    pub fn addr(&self) -> &str {
        self.server.addr()
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // No code can panic in the middle of a change, so a poisoned lock is sound.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink for Prometheus {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        let mut table = lock(&self.table);
        match &stamped.event {
            Event::RunStarted { recipe_hash, kernel_class, workers, num_params, .. } => {
                table.info.clear();
                push_label(&mut table.info, "recipe_hash", recipe_hash);
                push_label(&mut table.info, "kernel_class", kernel_class);
                push_label(&mut table.info, "workers", &workers.to_string());
                push_label(&mut table.info, "parameters", &num_params.to_string());
            }
            Event::Step { step, is_skipped, .. } => {
                table.num_steps = *step;
                table.num_skipped += u64::from(*is_skipped);
            }
            _ => {}
        }
        visit_scalars(&stamped.event, &mut |scalar| table.set(&scalar));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}

impl Table {
    fn set(&mut self, scalar: &Scalar<'_>) {
        if scalar.label == Label::None {
            self.values[scalar.metric as usize] = Some(scalar.value);
            return;
        }
        let mut labels = String::new();
        for (name, value) in scalar.label.pairs() {
            push_label(&mut labels, name, &value.to_string());
        }
        self.labelled.insert((scalar.metric, labels), scalar.value);
    }

    /// The page of a scrape.
    fn render(&self) -> String {
        let mut page = String::new();
        push_head(&mut page, "lockstep_run_info", "Identity of the run.", "gauge");
        push_value(&mut page, "lockstep_run_info", &self.info, 1.0);
        push_head(&mut page, "lockstep_steps_total", "Completed steps.", "counter");
        push_value(&mut page, "lockstep_steps_total", "", self.num_steps as f64);
        let help = "Steps of this attempt without an update.";
        push_head(&mut page, "lockstep_skipped_steps_total", help, "counter");
        push_value(&mut page, "lockstep_skipped_steps_total", "", self.num_skipped as f64);
        let mut name = String::new();
        for metric in Metric::ALL {
            let of_metric = (*metric, String::new())..=(*metric, char::MAX.to_string());
            let mut labelled = self.labelled.range(of_metric).peekable();
            let value = self.values.get(*metric as usize).copied().flatten();
            if value.is_none() && labelled.peek().is_none() {
                continue;
            }
            name.clear();
            name.push_str("lockstep_");
            name.extend(metric.name().chars().map(|c| if c == '/' { '_' } else { c }));
            push_head(&mut page, &name, metric.help(), "gauge");
            if let Some(value) = value {
                push_value(&mut page, &name, "", value);
            }
            for ((_, labels), value) in labelled {
                push_value(&mut page, &name, labels, *value);
            }
        }
        page
    }
}

fn push_head(page: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn push_value(page: &mut String, name: &str, labels: &str, value: f64) {
    page.push_str(name);
    if !labels.is_empty() {
        let _ = write!(page, "{{{labels}}}");
    }
    let _ = match value {
        _ if value.is_nan() => writeln!(page, " NaN"),
        f64::INFINITY => writeln!(page, " +Inf"),
        f64::NEG_INFINITY => writeln!(page, " -Inf"),
        _ => writeln!(page, " {value}"),
    };
}

/// Appends a label, quoted as the format says.
fn push_label(labels: &mut String, name: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(name);
    labels.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            letter => labels.push(letter),
        }
    }
    labels.push('"');
}

#[cfg(test)]
mod tests;

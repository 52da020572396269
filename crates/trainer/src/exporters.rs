//! Exporters of a run's metrics, as the recipe selects them.
//!
//! An exporter that cannot start is a warning: telemetry never stops a run. Files of the run folder
//! begin with the numbers of the steps that a run resumes from, as its event file does.

use crate::RunFolder;
use lockstep_config::Recipe;
use lockstep_platform::{FileKind, World};
use lockstep_telemetry::json_lines::visit_events;
use lockstep_telemetry::{Csv, Otlp, Prometheus, Sink, TelemetryError, TensorBoard};
use std::path::Path;

/// Exporters, and why others could not start.
#[derive(Default)]
pub(crate) struct Exporters {
    pub(crate) sinks: Vec<Box<dyn Sink>>,
    pub(crate) warnings: Vec<String>,
}

impl Exporters {
    /// Starts the exporters of rank 0, whose run folder this is.
    pub(crate) fn start(recipe: &Recipe, world: &World, folder: &RunFolder) -> Self {
        let telemetry = &recipe.telemetry;
        let mut found = Self::default();
        if telemetry.tensorboard {
            let texts = [("recipe", recipe_text(recipe)), ("layout", layout_text(recipe))];
            let sink = TensorBoard::create(world, &folder.tensorboard(), &texts);
            found.add_file(sink, world, &folder.events());
        }
        if telemetry.csv {
            found.add_file(Csv::create(world, &folder.metrics()), world, &folder.events());
        }
        if !telemetry.prometheus.is_empty() {
            found.add(Prometheus::listen(world, &telemetry.prometheus));
        }
        if !telemetry.otlp.is_empty() {
            let endpoint = telemetry.otlp.parse().expect("the recipe has a URL");
            found.add(Otlp::start(world, endpoint));
        }
        found
    }

    fn add<S: Sink + 'static>(&mut self, sink: Result<S, TelemetryError>) {
        match sink {
            Ok(sink) => self.sinks.push(Box::new(sink)),
            Err(error) => self.warnings.push(format!("{error}; the run continues without it")),
        }
    }

    /// Adds a file, with the numbers of the earlier events in front.
    fn add_file<S: Sink + 'static>(
        &mut self,
        sink: Result<S, TelemetryError>,
        world: &World,
        events: &Path,
    ) {
        let has_events = matches!(world.files().metadata(events), Some(FileKind::File { .. }));
        self.add(sink.and_then(|mut sink| {
            if has_events {
                visit_events(world, events, |earlier| sink.write(earlier))?;
            }
            Ok(sink)
        }));
    }
}

fn recipe_text(recipe: &Recipe) -> String {
    format!("```toml\n{}```\n", recipe.to_toml())
}

/// The layout as a table.
fn layout_text(recipe: &Recipe) -> String {
    let parallel = &recipe.parallel;
    let rows = [
        ("workers", recipe.run.workers.to_string()),
        ("data parallel", parallel.data.to_string()),
        ("pipeline stages", parallel.pipeline.to_string()),
        ("tensor parallel", parallel.tensor.to_string()),
        ("ZeRO stage", parallel.zero.to_string()),
        ("global batch", recipe.train.batch.to_string()),
        ("micro-batch size", recipe.train.microbatch_size.to_string()),
        ("recompute", parallel.recompute.to_string()),
        ("recipe hash", recipe.hash()),
    ];
    let rows = rows.map(|(name, value)| format!("| {name} | {value} |\n"));
    format!("| setting | value |\n| --- | --- |\n{}", rows.concat())
}

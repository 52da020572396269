//! `ExportMetricsServiceRequest` in the JSON encoding of OTLP: gauges with a point for every step.
//!
//! 64-bit integers are strings in JSON, and non-finite floats are the strings of Protocol Buffers'
//! JSON mapping.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::Point;
use crate::Metric;

/// Attributes of the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    pub(super) host: String,
    pub(super) recipe_hash: String,
}

/// The request for a batch; nothing for an empty one.
pub(super) fn request(
    resource: &Resource,
    points: &VecDeque<Point>,
    num_dropped: u64,
) -> Option<Vec<u8>> {
    let mut by_metric: BTreeMap<Metric, Vec<Value>> = BTreeMap::new();
    for point in points {
        by_metric.entry(point.metric).or_default().push(data_point(point));
    }
    let last = points.back()?;
    let mut metrics: Vec<Value> =
        by_metric.into_iter().map(|(it, points)| gauge(it, &points)).collect();
    let dropped = json!({"timeUnixNano": nanos(last), "asInt": num_dropped.to_string()});
    metrics.push(json!({
        "name": "lockstep.telemetry.dropped",
        "description": "Numbers that were dropped because the collector was too slow.",
        "gauge": {"dataPoints": [dropped]},
    }));
    let attributes = [
        ("service.name", "lockstep"),
        ("host.name", &resource.host),
        ("lockstep.recipe_hash", &resource.recipe_hash),
    ];
    let attributes = attributes.map(|(key, text)| text_attribute(key, text));
    let scope = json!({"name": "lockstep", "version": env!("CARGO_PKG_VERSION")});
    let request = json!({"resourceMetrics": [{
        "resource": {"attributes": attributes},
        "scopeMetrics": [{"scope": scope, "metrics": metrics}],
    }]});
    Some(request.to_string().into_bytes())
}

fn gauge(metric: Metric, points: &[Value]) -> Value {
    let name = format!("lockstep.{}", metric.name().replace('/', "."));
    json!({"name": name, "description": metric.help(), "gauge": {"dataPoints": points}})
}

fn data_point(point: &Point) -> Value {
    let step = json!({"key": "step", "value": {"intValue": point.step.to_string()}});
    let labels = point.labels.iter().map(|(name, value)| text_attribute(name, value));
    let attributes: Vec<Value> = std::iter::once(step).chain(labels).collect();
    json!({"timeUnixNano": nanos(point), "asDouble": number(point.value), "attributes": attributes})
}

fn nanos(point: &Point) -> String {
    point.wall.as_nanos().to_string()
}

fn number(value: f64) -> Value {
    match value {
        _ if value.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        _ => json!(value),
    }
}

fn text_attribute(key: &str, text: &str) -> Value {
    json!({"key": key, "value": {"stringValue": text}})
}

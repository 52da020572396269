//! A plan as the page of `lockstep serve` asks for it: a model on a number of devices.

use super::cluster::{MAX_BATCH, nothing_fits};
use super::cluster_report::{Extras, Report};
use super::cluster_text::render;
use super::html::{answer, pictures, scaling_picture};
use super::{Section, suggest};
use lockstep_dashboard::Query;
use lockstep_planner::Calibration;
use lockstep_planner::hardware::{Cluster, DEVICES, device_name};
use lockstep_planner::model::{preset, presets};
use lockstep_planner::scenario::{DEFAULT_RESERVE, MAX_DEVICES, Scenario, default_batch};
use lockstep_planner::search::{scaling, search};
use serde_json::{Value, json};

/// Layouts of the answer.
const NUM_LAYOUTS: usize = 5;
/// Threshold of lost hours, as of the command.
const LOST_HOURS: f64 = 24.0;

/// Models and devices to choose from, and the plan that the page begins with.
pub(crate) fn choices() -> Value {
    let models: Vec<Value> = presets()
        .iter()
        .map(|model| json!({ "name": model.name, "params": model.num_params() as f64 }))
        .collect();
    let devices: Vec<Value> = DEVICES
        .iter()
        .map(|device| json!({ "name": device.name, "network_gbps": device.network_gbps }))
        .collect();
    json!({
        "models": models,
        "devices": devices,
        "start": { "model": "llama3-70b", "device": "h100-80gb", "devices": 512 },
    })
}

/// The best layouts, with pictures.
pub(crate) fn plan(query: &Query) -> Result<Value, String> {
    let scenario = scenario(query)?;
    let found = search(&scenario.workload(), NUM_LAYOUTS);
    let Some(first) = found.best.first() else {
        return Err(nothing_fits(&scenario, &found, query.get("batch").is_some()));
    };
    let costs = scenario.bill_on(&scenario.cluster, first.step.seconds);
    let extras = Extras { what_if: false, scaling: false, lost_hours: LOST_HOURS };
    let report = Report::new(None, &scenario, &found, &costs, extras);
    let layouts = found.best.iter().map(|candidate| {
        json!({
            "layout": candidate.layout.to_string(),
            "step_seconds": candidate.step.seconds,
            "memory_bytes": candidate.memory.needed(&scenario.calibration),
            "mfu": scenario.mfu(candidate.step.seconds),
        })
    });
    Ok(json!({
        "layout": report.layout.brief,
        "not_runnable": report.not_runnable,
        "batch": scenario.batch,
        "figures": answer::figures(&scenario, &report),
        "layouts": layouts.collect::<Vec<_>>(),
        "pictures": pictures(&scenario, &found),
        "text": render(&scenario, &found, &report, Section::All),
        "command": command(&scenario),
        "cluster_file": cluster_file(&scenario.cluster),
    }))
}

/// Pictures of strong and weak scaling, which take longer than the plan: a search for each
/// number of devices.
pub(crate) fn scaling(query: &Query) -> Result<Value, String> {
    let scenario = scenario(query)?;
    let workload = scenario.workload();
    let picture = |(name, is_weak)| {
        scaling_picture(&format!("Scaling: {name}"), &scaling::curve(&workload, is_weak))
    };
    let curves = [("fixed batch", false), ("batch grows with devices", true)];
    Ok(json!({ "pictures": curves.map(picture) }))
}

/// The scenario of a query.
fn scenario(query: &Query) -> Result<Scenario, String> {
    let text = |name: &str| query.get(name).ok_or_else(|| format!("{name} is absent"));
    let name = text("model")?;
    let model = preset(name).ok_or_else(|| suggest::unknown_model(name))?;
    let device = device_name::find(text("device")?).map_err(|error| error.to_string())?;
    let devices = whole("devices", text("devices")?, MAX_DEVICES)?;
    let mut cluster = Cluster::of(device, devices);
    cluster.name = format!("{devices}x{}", device.name);
    if let Some(text) = query.get("network") {
        let gbps = text.parse().ok().filter(|gbps: &f64| *gbps > 0.0 && gbps.is_finite());
        cluster.network.device_gbps =
            gbps.ok_or_else(|| format!("network {text} is no positive number of GB/s"))?;
    }
    let batch = match query.get("batch") {
        Some(text) => whole("batch", text, MAX_BATCH.unsigned_abs())?,
        None => default_batch(&model, devices),
    };
    let calibration = Calibration::of(cluster.device.calibration)
        .ok_or_else(|| format!("{} has no calibration", device.name))?;
    let tokens = 20.0 * model.num_params() as f64;
    let reserve = DEFAULT_RESERVE;
    Ok(Scenario { model, cluster, batch, tokens, calibration, layout: None, reserve })
}

fn whole(name: &str, text: &str, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("{name} {text} is not a whole number from 1 to {max}"))
}

/// The command that plans the same; a network of another speed needs a cluster file.
fn command(scenario: &Scenario) -> String {
    let (model, batch) = (&scenario.model.name, scenario.batch);
    let cluster = match cluster_file(&scenario.cluster) {
        Some(_) => "cluster.toml",
        None => &scenario.cluster.name,
    };
    format!("lockstep plan --model {model} --cluster {cluster} --batch {batch} --html plan.html")
}

/// The cluster as a file, if its network is not the usual one.
fn cluster_file(cluster: &Cluster) -> Option<String> {
    let Cluster { device, devices, network, .. } = cluster;
    let (name, gbps) = (device.name, network.device_gbps);
    let is_usual = gbps.to_bits() == device.network_gbps.to_bits();
    let file = || format!("device = \"{name}\"\ndevices = {devices}\nnetwork_gbps = {gbps}\n");
    (!is_usual).then(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_planner::hardware::file;

    fn ask(query: &str) -> Result<Value, String> {
        plan(&Query::parse(query).expect("a query"))
    }

    #[test]
    fn a_slower_network_is_planned_and_written_as_a_cluster_file() {
        let usual = ask("model=llama3-8b&device=h100-80gb&devices=64&batch=64").expect("a plan");
        let query = "model=llama3-8b&device=h100-80gb&devices=64&batch=64&network=0.5";
        let slow = ask(query).expect("a plan");
        let seconds = |plan: &Value| plan["layouts"][0]["step_seconds"].as_f64().expect("a time");
        assert!(seconds(&slow) > seconds(&usual), "{} {}", seconds(&slow), seconds(&usual));
        assert_eq!(usual["cluster_file"], Value::Null);
        let text = slow["cluster_file"].as_str().expect("a file");
        let cluster = file::parse("cluster.toml", text).expect("a cluster");
        assert_eq!((cluster.devices, cluster.device.name), (64, "h100-80gb"));
        assert!((cluster.network.device_gbps - 0.5).abs() < 1e-12);
        let command = "lockstep plan --model llama3-8b --cluster cluster.toml --batch 64 \
                       --html plan.html";
        assert_eq!(slow["command"], command);
        assert!(slow["pictures"].as_array().is_some_and(|all| all.len() >= 2));
        let query = Query::parse("model=llama3-8b&device=h100-80gb&devices=8&batch=64");
        let curves = scaling(&query.expect("a query")).expect("curves");
        let pictures = curves["pictures"].as_array().expect("a list");
        assert!(pictures.len() == 2, "{curves}");
        assert!(pictures.iter().all(|it| it.as_str().is_some_and(|it| it.contains("ideal"))));
    }

    #[test]
    fn wrong_queries_say_why() {
        for (query, why) in [
            ("device=h100-80gb&devices=8", "model is absent"),
            ("model=llama9&device=h100-80gb&devices=8", "llama"),
            ("model=llama3-8b&device=h100-80gb&devices=0", "devices 0 is not a whole number"),
            ("model=llama3-8b&device=h100-80gb&devices=8&network=-1", "no positive number"),
            ("model=llama3-8b&device=h100-80gb&devices=8&batch=x", "batch x"),
            ("model=gpt3-175b&device=a100-80gb&devices=1", "none of"),
        ] {
            let error = ask(query).unwrap_err();
            assert!(error.contains(why), "{query}: {error}");
        }
    }
}

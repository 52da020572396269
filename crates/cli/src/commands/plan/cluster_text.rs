//! The plan for a cluster as text.

use super::Section;
use super::cluster_report::{Flops, GroupReport, Report, flops};
use crate::quantity::{count, days, digits, dollars, gib, grouped, percent, plural, si};
use lockstep_planner::advice;
use lockstep_planner::bill::Bill;
use lockstep_planner::layout::LEGEND;
use lockstep_planner::risk::Risk;
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::scaling::Curve;
use lockstep_planner::search::upgrades::Upgrade;
use lockstep_planner::search::{Candidate, SearchResult};
use lockstep_planner::time::bottleneck::Limit;
use lockstep_planner::time::cluster::Step;
use std::fmt::Write;

/// Width of a table's layout column.
const LAYOUT_WIDTH: usize = 62;

/// The whole plan, or one section of it.
pub(super) fn render(
    scenario: &Scenario,
    found: &SearchResult,
    report: &Report,
    section: Section,
) -> String {
    let first = &found.best[0];
    let fits = report.memory.needed_bytes <= report.memory.device_bytes;
    let what = match scenario.layout {
        _ if !fits => "does not fit",
        Some(_) => "layout",
        None => "best layout",
    };
    let mut text = render_run(scenario, report);
    if section == Section::Search {
        let _ = writeln!(text, "({LEGEND})\n");
    } else {
        text += &render_limits(scenario);
        let _ = writeln!(text, "\n{what}: {}\n({LEGEND})", report.layout.brief);
        if !report.runnable {
            let reasons = report.not_runnable.join("; ");
            let _ = writeln!(text, "this engine cannot run it: {reasons}");
        }
    }
    let search = render_search(scenario, found, report);
    let (pareto, sync) = (render_pareto(scenario, found), render_sync(report, first));
    match section {
        Section::Memory => text + &render_memory(report) + &pareto,
        Section::Time => text + &render_step(scenario, report, &first.step),
        Section::Search => text + &search + &pareto + &sync,
        Section::All => {
            text += &render_step(scenario, report, &first.step);
            text += &(render_memory(report) + "\n" + &search + &pareto + &sync);
            if let Some(warning) = &report.batch_warning {
                let _ = writeln!(text, "warning: {warning}");
            }
            for (name, curve) in report.curves() {
                text += &render_curve(name, curve);
            }
            if !report.upgrades.is_empty() {
                text += "\nupgrades, re-planned:\n";
            }
            text.extend(report.upgrades.iter().map(render_upgrade));
            text + &render_bill(scenario, &report.bill) + &render_risk(&report.risk)
        }
    }
}

/// Model, cluster, global batch, sequence length and precision.
fn render_run(scenario: &Scenario, report: &Report) -> String {
    let (model, cluster) = (&scenario.model, &scenario.cluster);
    format!(
        "{}: {} parameters on {} ({} node{})\n\
         global batch {} sequences, sequence length {}, {} tokens per step, {}\n",
        model.name,
        // Billions of parameters are B by convention, not G.
        count(model.num_params() as f64).replace('G', "B"),
        cluster.name,
        cluster.nodes(),
        plural(cluster.nodes()),
        scenario.batch,
        model.context,
        count(scenario.step_tokens() as f64),
        report.precision,
    )
}

/// Bounds that no layout changes: arithmetic, states, gradients, data.
fn render_limits(scenario: &Scenario) -> String {
    let (model, cluster) = (&scenario.model, &scenario.cluster);
    let Flops { model: flops, causal, hardware } = flops(scenario);
    let peak = cluster.device.peak() * cluster.devices as f64;
    let params = model.num_params() as f64;
    let network = if cluster.nodes() > 1 {
        cluster.network.device_gbps * cluster.per_node as f64
    } else {
        cluster.link_gbps
    };
    let gib_all = cluster.device.memory_bytes() * cluster.devices as f64;
    format!(
        "compute        {} per step, {} s at peak ({} causal, {} with full recompute)\n\
         memory         {} GiB of weights, gradients and optimizer states, {} GiB on all devices\n\
         communication  {} of gradients, {} s for one ring all-reduce over {}\n\
         data           {} tokens, {}\n",
        si(flops, "FLOP"),
        digits(flops / peak),
        si(causal, "FLOP"),
        si(hardware, "FLOP"),
        gib(18.0 * params),
        gib(gib_all),
        si(4.0 * params, "B"),
        digits(8.0 * params / (1e9 * network)),
        if cluster.nodes() > 1 { "the network" } else { "the links of a node" },
        count(scenario.tokens),
        si(model.token_bytes() * scenario.tokens, "B"),
    )
}

/// Step time by part, with throughput.
fn render_step(scenario: &Scenario, report: &Report, step: &Step) -> String {
    let part =
        |seconds: f64| format!("{:>8} s {:>7}", digits(seconds), percent(seconds / step.seconds));
    let loading_rate = scenario.model.token_bytes() * report.tokens_per_second;
    let mut groups: String = report.communication_groups.iter().map(render_group).collect();
    groups += &render_limits_of_step(&report.limits);
    format!(
        "step {} s, {} tokens/s, {} tokens/s per GPU, {} TFLOP/s per GPU, MFU {}, \
         {} micro-batch{}\n\
         \x20 compute                {}\n\
         \x20 exposed communication  {}\n\
         \x20 pipeline bubble        {}\n\
         \x20 kernel launches        {}\n\
         \x20 optimizer              {}\n\
         \x20 data loading           {} (overlapped, {})\n{groups}",
        digits(step.seconds),
        count(report.tokens_per_second),
        digits(report.tokens_per_second_per_device),
        digits(report.tflops_per_device),
        percent(report.mfu),
        report.layout.microbatches,
        if report.layout.microbatches == 1 { "" } else { "es" },
        part(step.compute),
        part(step.exposed),
        part(step.bubble),
        part(step.host),
        part(step.update),
        part(step.loading),
        si(loading_rate, "B/s"),
    )
}

fn render_group(group: &GroupReport) -> String {
    let GroupReport { name, ranks, stride, bottleneck } = group;
    let apart = match stride {
        1 => "adjacent devices".into(),
        _ => format!("{stride} devices apart"),
    };
    format!("  {ranks} {name}, {apart}: limited by {bottleneck}\n")
}

/// The resources whose doubling shortens the step most.
fn render_limits_of_step(limits: &[Limit]) -> String {
    let saves = |limit: &Limit| {
        format!("{} (twice as much saves {})", limit.resource.name(), percent(limit.saves_share))
    };
    let most: Vec<String> = limits.iter().take(2).map(saves).collect();
    if most.is_empty() {
        return "  the step is limited by latency and launches\n".to_owned();
    }
    format!("  the step is limited by {}\n", most.join(", then "))
}

/// Memory of the fullest device by part.
fn render_memory(report: &Report) -> String {
    let memory = &report.memory;
    let parts = [
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("buffers", memory.buffers_bytes),
        ("fragmentation", memory.fragmentation_bytes),
        ("library overhead", memory.library_bytes),
    ];
    let parts = parts.map(|(name, bytes)| format!("{name} {}", gib(bytes as f64))).join(", ");
    let (device, reserve) = (memory.device_bytes as f64, memory.reserve_bytes as f64);
    let mut text = format!(
        "memory of the fullest device (stage {}): {} of {} GiB, {} GiB ({}) of it in reserve\n\
         \x20 {parts}\n",
        memory.stage,
        gib(memory.needed_bytes as f64),
        gib(device),
        gib(reserve),
        percent(reserve / device),
    );
    if memory.needed_bytes + memory.reserve_bytes > memory.device_bytes && report.feasible {
        text += "warning: this layout uses the reserve; predictions of memory are off by a few \
                 percent\n";
    }
    if memory.host_bytes > 0 {
        let _ = writeln!(
            text,
            "offloaded to host memory: {} of {} GiB per node",
            gib(memory.host_bytes as f64),
            gib(memory.host_memory_bytes as f64)
        );
    }
    if memory.nvme_bytes > 0 {
        let nvme = si(memory.nvme_bytes as f64, "B");
        let _ = writeln!(text, "offloaded to NVMe drives: {nvme} per device");
    }
    text
}

/// Number of layouts, the best of them, and why the others lost.
fn render_search(scenario: &Scenario, found: &SearchResult, report: &Report) -> String {
    let (examined, too_large) = (found.examined, found.too_large);
    let s = plural(examined as u64);
    let mut text = format!("{examined} layout{s} examined, {too_large} out of memory\n");
    let heading = ("layout", "step", "MFU", "memory");
    let _ = writeln!(
        text,
        "\n{:<LAYOUT_WIDTH$} {:>9} {:>7} {:>9}",
        heading.0, heading.1, heading.2, heading.3
    );
    for candidate in &found.best {
        let _ = writeln!(
            text,
            "{:<LAYOUT_WIDTH$} {:>7} s {:>7} {:>5} GiB",
            candidate.layout,
            digits(candidate.step.seconds),
            percent(scenario.mfu(candidate.step.seconds)),
            gib(candidate.memory.needed(&scenario.calibration)),
        );
    }
    for line in [&report.why_second_is_slower, &report.almost_fits].into_iter().flatten() {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The Pareto front of step time and memory.
fn render_pareto(scenario: &Scenario, found: &SearchResult) -> String {
    let Some(smallest) = found.pareto.last() else { return String::new() };
    let mut text = format!(
        "\nfastest, and cheapest on this many devices: {}\nleast memory: {}\n\
         Pareto front of memory and step time:\n",
        found.best[0].layout, smallest.layout,
    );
    for candidate in &found.pareto {
        let memory = gib(candidate.memory.needed(&scenario.calibration));
        let seconds = digits(candidate.step.seconds);
        let _ =
            writeln!(text, "{:<LAYOUT_WIDTH$} {seconds:>7} s {memory:>13} GiB", candidate.layout);
    }
    text
}

/// Estimated gain of other sync strategies than plain all-reduce.
fn render_sync(report: &Report, first: &Candidate) -> String {
    if report.layout.data * report.layout.context == 1 {
        return "\none data-parallel replica: no gradients to all-reduce\n".to_owned();
    }
    let mut text = format!("\n{}", advice::render(&first.step, report.layout.zero > 0));
    let threshold = advice::HELPS * first.step.seconds;
    let helps = report.layouts_with_sync.first().filter(|one| one.seconds_to_same_loss < threshold);
    if let Some(best) = helps {
        let _ = writeln!(
            text,
            "with another sync strategy the best layout may be {} with {}: worth {} s per step \
             (an estimate)",
            best.layout,
            best.sync,
            digits(best.seconds_to_same_loss)
        );
    }
    text
}

/// A scaling curve as a table.
fn render_curve(name: &str, curve: &Curve) -> String {
    let mut text = format!(
        "\n{name}:\n{:>8} {:>11} {:>15} {:>11}  layout\n",
        "devices", "step", "sequences/s", "efficiency"
    );
    for point in &curve.points {
        let _ = writeln!(
            text,
            "{:>8} {:>9} s {:>15} {:>11}  {}",
            point.devices,
            digits(point.step_seconds),
            digits(point.sequences_per_second),
            percent(point.efficiency),
            point.layout
        );
    }
    let cheapest = curve.points.iter().max_by(|a, b| a.efficiency.total_cmp(&b.efficiency));
    if let Some(point) = cheapest {
        let _ = writeln!(text, "cheapest per sequence: {} devices", point.devices);
    }
    if let Some(devices) = curve.pays_up_to {
        let _ = writeln!(text, "doubling pays up to {devices} devices");
    }
    if let Some(share) = curve.serial_share {
        let _ = writeln!(text, "serial fraction of a step (Amdahl): {}", percent(share));
    }
    text
}

fn render_upgrade(upgrade: &Upgrade) -> String {
    // Adding zero turns a rounded -0 into 0.
    let change = |saved: f64| (-1e3 * saved).round() / 10.0 + 0.0;
    format!(
        "{}: {} s per step, {} ({:+.1} %), ${} ({:+.1} %)\n",
        upgrade.what,
        digits(upgrade.step_seconds),
        days(upgrade.days),
        change(upgrade.saves_share),
        dollars(upgrade.dollars),
        change(upgrade.saves_dollars_share)
    )
}

fn render_bill(scenario: &Scenario, bill: &Bill) -> String {
    format!(
        "\n{} tokens: {} ({} without failures), {} GPU hours, ${} rent, {} (${} of energy)\n\
         {} failures, one every {} h; a checkpoint of {} takes {} s, optimal interval \
         {} min (Daly); {} of the time trains\n",
        count(scenario.tokens),
        days(bill.days),
        days(bill.days_undisturbed),
        grouped(bill.device_hours),
        dollars(bill.dollars),
        si(1e6 * bill.megawatt_hours, "Wh"),
        dollars(bill.energy_dollars),
        digits(bill.failures),
        digits(bill.hours_between_failures),
        si(bill.checkpoint_bytes, "B"),
        digits(bill.checkpoint_seconds),
        digits(bill.checkpoint_interval_seconds / 60.0),
        percent(bill.effective_share),
    )
}

/// Hours that failures may cost beyond their mean.
fn render_risk(risk: &Risk) -> String {
    format!(
        "lost to failures: {} h on average, over {} h in one run of ten, over {} h in one of a \
         hundred, over {} h with probability {}; {} rack failures; with one more faulty node a \
         failure every {} h\n",
        digits(risk.expected_lost_hours),
        digits(risk.lost_hours_one_in_ten),
        digits(risk.lost_hours_one_in_a_hundred),
        digits(risk.threshold_hours),
        percent(risk.chance_above_threshold),
        digits(risk.rack_failures),
        digits(risk.hours_between_failures_with_a_bad_node),
    )
}

//! What a cluster's plan says, for people.

use super::Section;
use super::cluster::Asked;
use super::cluster_report::{ExchangeReport, Flops, Report, flops, mfu};
use lockstep_estimate::advice;
use lockstep_estimate::bill::Bill;
use lockstep_estimate::risk::Risk;
use lockstep_estimate::search::scaling::Curve;
use lockstep_estimate::search::{Choice, Found};
use lockstep_estimate::time::Step;
use std::fmt::Write;

/// The report for people, or a section of it.
pub(super) fn render(asked: &Asked, found: &Found, report: &Report, section: Section) -> String {
    let first = &found.best[0];
    let fits = report.memory.needed_bytes <= report.memory.device_bytes;
    let what = match asked.layout {
        _ if !fits => "does not fit",
        Some(_) => "as given",
        None => "best",
    };
    let name = format!("{what}: {}\n", report.layout.brief);
    match section {
        Section::Memory => walls(asked) + "\n" + &name + &held(report) + &pareto(asked, found),
        Section::Time => walls(asked) + "\n" + &name + &spent(asked, report, &first.step),
        Section::Search => {
            searched(asked, found, report) + &pareto(asked, found) + &together(report, first)
        }
        Section::All => {
            let mut text = walls(asked) + "\n" + &name;
            text += &(spent(asked, report, &first.step) + &held(report) + "\n");
            text += &(searched(asked, found, report)
                + &pareto(asked, found)
                + &together(report, first));
            if let Some(warning) = &report.batch_warning {
                let _ = writeln!(text, "warning: {warning}");
            }
            for (name, curve) in report.curves() {
                text += &scaled(name, curve);
            }
            for upgrade in &report.upgrades {
                let _ = writeln!(text, "{}", upgrade.line());
            }
            text + &money(asked, &report.bill) + &tail(&report.risk)
        }
    }
}

/// How many layouts there are, the best of them, why the second lost, and what would be quicker.
fn searched(asked: &Asked, found: &Found, report: &Report) -> String {
    let (examined, too_large) = (found.examined, found.too_large);
    let s = several(examined as u64);
    let mut text = format!("{examined} layout{s} examined, {too_large} too large\n");
    let _ = writeln!(text, "\n{:<62} {:>9} {:>7} {:>9}", "layout", "step", "MFU", "memory");
    for choice in &found.best {
        let _ = writeln!(
            text,
            "{:<62} {:>7.3} s {:>5.1} % {:>5.1} GiB",
            choice.layout.brief(),
            choice.step.seconds,
            100.0 * mfu(asked, choice.step.seconds),
            gib(choice.memory.needed(&asked.calibration)),
        );
    }
    for line in [&report.why_the_second_lost, &report.nearly].into_iter().flatten() {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Layouts that nothing beats both in time and in memory.
fn pareto(asked: &Asked, found: &Found) -> String {
    let Some(roomiest) = found.pareto.last() else { return String::new() };
    let mut text = format!(
        "\nbest by time, and by money on as many devices: {}\nbest by memory headroom: {}\n\
         less memory for more time:\n",
        found.best[0].layout.brief(),
        roomiest.layout.brief(),
    );
    for choice in &found.pareto {
        let held = gib(choice.memory.needed(&asked.calibration));
        let (brief, seconds) = (choice.layout.brief(), choice.step.seconds);
        let _ = writeln!(text, "{brief:<62} {seconds:>7.3} s {held:>15.1} GiB");
    }
    text
}

/// What other ways to keep copies together would bring.
fn together(report: &Report, first: &Choice) -> String {
    if report.layout.data * report.layout.context == 1 {
        return "\nthere is one copy, so nothing has to be kept together\n".to_owned();
    }
    let mut text = format!("\n{}", advice::lines(&first.step, report.layout.zero > 0));
    let much = advice::HELPS * first.step.seconds;
    let helps = report.lazy_layouts.first().filter(|lazy| lazy.seconds_to_the_same_loss < much);
    if let Some(first) = helps {
        let _ = writeln!(
            text,
            "with another way to keep copies together the best might be {} with {}: worth {:.3} s \
             a step (an estimate)",
            first.layout, first.way, first.seconds_to_the_same_loss
        );
    }
    text
}

/// A curve in lines.
fn scaled(name: &str, curve: &Curve) -> String {
    let mut text = format!("\n{name} on other numbers of devices:\n");
    for point in &curve.points {
        let _ = writeln!(
            text,
            "{:>8} {:>9.3} s {:>9.1} sequences/s {:>5.0} %  {}",
            point.devices,
            point.step_seconds,
            point.sequences_per_second,
            100.0 * point.efficiency,
            point.layout
        );
    }
    let cheapest = curve.points.iter().max_by(|a, b| a.efficiency.total_cmp(&b.efficiency));
    if let Some(point) = cheapest {
        let _ = writeln!(text, "a sequence costs least on {} devices", point.devices);
    }
    if let Some(devices) = curve.pays_up_to {
        let _ = writeln!(text, "pays up to {devices} devices");
    }
    if let Some(share) = curve.serial_share {
        let _ = writeln!(text, "{:.1} % of a step do not get shorter (Amdahl)", 100.0 * share);
    }
    text
}

/// What failures may cost beyond their mean.
fn tail(risk: &Risk) -> String {
    format!(
        "{:.1} h are lost on average; one run in ten loses more than {:.1} h, one in a hundred \
         more than {:.1} h, {:.1} % of them more than {:.0} h; {:.2} failures of a rack; with one \
         more bad node a failure every {:.1} h\n",
        risk.expected_lost_hours,
        risk.lost_hours_one_in_ten,
        risk.lost_hours_one_in_a_hundred,
        100.0 * risk.chance_to_lose_more,
        risk.asked_hours,
        risk.rack_failures,
        risk.hours_between_failures_with_a_bad_node,
    )
}

/// The end of a word that stands for several.
const fn several(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

pub(super) fn gib(bytes: f64) -> f64 {
    bytes / f64::from(1_u32 << 30)
}

/// What no layout changes: arithmetic, states, gradients, data.
fn walls(asked: &Asked) -> String {
    let (model, cluster) = (&asked.model, &asked.cluster);
    let Flops { model: flops, causal, hardware } = flops(asked);
    let peak = cluster.device.peak() * cluster.devices as f64;
    let params = model.num_params() as f64;
    let network = if cluster.nodes() > 1 {
        cluster.network.device_gbps * cluster.per_node as f64
    } else {
        cluster.link_gbps
    };
    let network = 1e9 * network;
    format!(
        "{}: {:.2} B parameters on {} ({} node{})\n\
         compute wall        {:.1} PFLOP a step, {:.2} s at peak ({:.1} with causal pairs alone, \
         {:.1} with all computed again)\n\
         memory wall         {:.0} GB of states, {:.0} GB of memory\n\
         communication wall  {:.1} GB of gradients, {:.2} s once around {}\n\
         data                {:.0} G tokens, {:.0} GB\n",
        model.name,
        params / 1e9,
        cluster.name,
        cluster.nodes(),
        several(cluster.nodes()),
        flops / 1e15,
        flops / peak,
        causal / 1e15,
        hardware / 1e15,
        18.0 * params / 1e9,
        cluster.device.memory_bytes() * cluster.devices as f64 / 1e9,
        4.0 * params / 1e9,
        8.0 * params / network,
        if cluster.nodes() > 1 { "the network" } else { "the links of a node" },
        asked.tokens / 1e9,
        model.token_bytes() * asked.tokens / 1e9,
    )
}

/// What a step is spent on.
fn spent(asked: &Asked, report: &Report, step: &Step) -> String {
    let part =
        |seconds: f64| format!("{:>8.3} s {:>5.1} %", seconds, 100.0 * seconds / step.seconds);
    format!(
        "step {:.3} s, {:.0} tokens/s, MFU {:.1} %, {} microbatch{}\n\
         \x20 computing          {}\n\
         \x20 exposed messages   {}\n\
         \x20 pipeline idle      {}\n\
         \x20 starting kernels   {}\n\
         \x20 update             {}\n\
         \x20 waiting for text   {} (it is read beside the rest, at {:.2} MB/s)\n{}",
        step.seconds,
        report.tokens_per_second,
        100.0 * report.mfu,
        report.layout.microbatches,
        if report.layout.microbatches == 1 { "" } else { "es" },
        part(step.compute),
        part(step.exposed),
        part(step.bubble),
        part(step.host),
        part(step.update),
        part(step.loading),
        asked.model.token_bytes() * report.tokens_per_second / 1e6,
        report.exchanges.iter().map(ExchangeReport::line).collect::<String>(),
    )
}

/// What the fullest device holds.
fn held(report: &Report) -> String {
    let memory = &report.memory;
    let parts = [
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("buffers", memory.buffers_bytes),
    ];
    let parts = parts.map(|(name, bytes)| format!("{name} {:.1}", gib(bytes as f64))).join(", ");
    format!(
        "memory of the fullest device (stage {}): {:.1} of {:.1} GiB with holes and libraries\n\
         \x20 {parts}\n",
        memory.stage,
        gib(memory.needed_bytes as f64),
        gib(memory.device_bytes as f64),
    )
}

fn money(asked: &Asked, bill: &Bill) -> String {
    format!(
        "\n{:.0} G tokens: {:.1} days ({:.1} without failures), {:.0} device hours, {:.0} $ of \
         rent, {:.0} MWh (for their owner {:.0} $)\n{:.1} failures, one in {:.1} h; a checkpoint \
         of {:.0} GB takes {:.0} s and is due every {:.0} min; {:.1} % of the time trains\n",
        asked.tokens / 1e9,
        bill.days,
        bill.days_undisturbed,
        bill.device_hours,
        bill.dollars,
        bill.megawatt_hours,
        bill.energy_dollars,
        bill.failures,
        bill.hours_between_failures,
        bill.checkpoint_bytes / 1e9,
        bill.checkpoint_seconds,
        bill.checkpoint_interval_seconds / 60.0,
        100.0 * bill.effective_share,
    )
}

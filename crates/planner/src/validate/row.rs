//! Published runs, read from rows with a common header.
//!
//! Missing columns with a usual value are assumed (micro-batch size 1 in a pipeline, a vocabulary
//! of 51,200); other missing columns make the row unusable, and the reason is reported.

use super::csv::Row;
use super::frameworks::{RunDescription, framework, rejects_layout};
use crate::framework::Framework;
use crate::hardware::{Cluster, Device};
use crate::job::Job;
use crate::layout::{Layout, Offload, OffloadedStates};
use crate::model::{Attention, Experts, FlopsConvention, Latent, Model, step_flops};
use lockstep_config::Recompute;
use lockstep_schedule::pipeline::Kind;

/// A published run.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedRun {
    /// Identifier of the row.
    pub id: String,
    /// Sweep: rows with equal work that differ only in layout share this name.
    pub sweep: String,
    /// Table of the source, with the ZeRO-3 runs separate.
    pub table: String,
    /// Trained model.
    pub model: Model,
    /// Cluster of the run.
    pub cluster: Cluster,
    /// Layout of the run.
    pub layout: Layout,
    /// Global batch in sequences.
    pub batch: u64,
    /// Training framework.
    pub framework: Framework,
    /// Measured step time in seconds.
    pub seconds: Option<f64>,
    /// Measured memory of the fullest device in bytes.
    pub memory: Option<f64>,
    /// Whether the run succeeded, if known.
    pub ran: Option<bool>,
}

impl PublishedRun {
    /// Job to price.
    pub const fn job(&self) -> Job<'_> {
        Job {
            model: &self.model,
            cluster: &self.cluster,
            layout: self.layout,
            batch: self.batch,
            framework: self.framework,
        }
    }
}

/// Text of a column, if not empty.
fn text<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column).map(|cell| cell.trim()).filter(|cell| !cell.is_empty())
}

/// Number that a cell is or begins with.
fn leading(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    text.parse().ok().or_else(|| text[..end].parse().ok())
}

/// Number of a column; text after it is ignored.
pub(super) fn number(row: &Row, column: &str) -> Option<f64> {
    leading(text(row, column)?)
}

fn whole(row: &Row, column: &str) -> Option<u64> {
    number(row, column).map(|number| number as u64)
}

fn need(row: &Row, column: &str) -> Result<u64, String> {
    whole(row, column)
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{column} is not published"))
}

/// Cells that stand for a missing number.
const MISSING: [&str; 7] = ["-", "–", "n/a", "na", "none", "unknown", "?"];

/// Numeric columns; measured ones must be above zero.
const NUMBERS: &str = "params_b layers hidden ffn heads kv_heads vocab seq gpu_mem_gb gpus \
     gpus_per_node inter_gbps_per_gpu tp pp vpp cp ep dp gbs mbs ga";
const MEASURED: [&str; 4] = ["step_time_s", "tok_s_gpu", "tflops_gpu", "mem_gb"];

/// Columns of [`NUMBERS`] that may be fractional, and the upper bound of counts.
const SHARES: [&str; 3] = ["params_b", "gpu_mem_gb", "inter_gbps_per_gpu"];
const MAX_COUNT: f64 = 1e7;

/// Reports the first cell that is not a valid number.
fn only_numbers(row: &Row) -> Result<(), String> {
    for column in NUMBERS.split(' ').chain(MEASURED) {
        let Some(text) = text(row, column) else { continue };
        if MISSING.contains(&text.to_lowercase().as_str()) {
            continue;
        }
        let is_measured = MEASURED.contains(&column);
        let number = leading(text).ok_or_else(|| format!("{column} = {text:?} is no number"))?;
        if !(number.is_finite() && number >= 0.0 && (number > 0.0 || !is_measured)) {
            let least = if is_measured { "above zero and finite" } else { "zero or more" };
            return Err(format!("{column} = {text} is not {least}"));
        }
        let is_count = !is_measured && !SHARES.contains(&column);
        if is_count && (number.fract() > 0.0 || number > MAX_COUNT) {
            return Err(format!("{column} = {text} is no whole number up to {MAX_COUNT}"));
        }
    }
    Ok(())
}

/// Columns that a table of runs must have.
const NEEDED: [&str; 6] = ["layers", "hidden", "gpu", "gpus", "tp", "pp"];

/// Reason that no row of a table can be predicted: columns it lacks.
pub fn missing_columns(row: &Row) -> Option<String> {
    let missing: Vec<&str> = NEEDED.into_iter().filter(|key| !row.contains_key(*key)).collect();
    let columns = if missing.len() == 1 { "column" } else { "columns" };
    (!missing.is_empty())
        .then(|| format!("this is no table of runs: it has no {columns} {}", missing.join(", ")))
}

/// Number behind a keyword: `top8` or `moe_ffn 2048`.
fn behind(text: &str, word: &str) -> Option<u64> {
    let rest = text[text.find(word)? + word.len()..].trim_start_matches([' ', '=']);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Reports why a row is unusable.
fn refuse(row: &Row) -> Result<(), String> {
    if let Some(reason) = missing_columns(row) {
        return Err(reason);
    }
    let status = text(row, "status").unwrap_or("ok");
    if status.starts_with("inconsistent") || status == "partial" {
        return Err(format!("its status is {status:?}"));
    }
    only_numbers(row)?;
    match text(row, "zero") {
        Some(zero) if number(row, "zero").is_some_and(|stage| stage > 3.0) => {
            Err(format!("zero = {zero} is no stage"))
        }
        _ => Ok(()),
    }
}

/// Reads a row, or reports why it cannot be predicted.
pub fn read(row: &Row) -> Result<PublishedRun, String> {
    refuse(row)?;
    let status = text(row, "status").unwrap_or("ok");
    let model = model(row)?;
    let cluster = cluster(row)?;
    let mut layout = layout(row, &model, &cluster)?;
    let (program, notes) = (text(row, "framework").unwrap_or(""), text(row, "notes").unwrap_or(""));
    let precision = text(row, "precision").unwrap_or("bf16");
    let source = text(row, "source").unwrap_or("");
    let mut framework = framework(&RunDescription { program, source, notes, precision }, &layout);
    let zero = text(row, "zero").unwrap_or("0");
    framework.zero_group = behind(zero, "shard group");
    let microbatches = whole(row, "ga").filter(|count| *count > 0).unwrap_or(1);
    let usual = layout.data * layout.microbatch * microbatches;
    let batch = whole(row, "gbs").filter(|batch| *batch > 0).unwrap_or(usual);
    if program.contains("torchtitan") && layout.pipeline > 1 && whole(row, "mbs").is_none() {
        // torchtitan splits a replica's batch into as many micro-batches as stages, with two
        // virtual stages per rank when interleaved.
        if layout.schedule == Kind::Interleaved {
            layout.chunks = 2;
        }
        let stages = layout.pipeline * layout.chunks;
        layout.microbatch = (batch / (layout.data * stages)).max(1);
    }
    // Only runs of equal work with equal kernels compete in a sweep.
    let work = format!("{} of {batch} x {} tokens", model.name, model.context);
    let kernels = format!("fp8 {}, eager {}", framework.fp8, framework.eager);
    let sweep = format!("{work} on {} {}, {kernels}", cluster.devices, cluster.device.name);
    let is_memory_only = status == "memory-only";
    let ran = !(status.contains("OOM") || status.contains("crashed"));
    let job = Job { model: &model, cluster: &cluster, layout, batch, framework };
    if let Some(reason) = rejects_layout(program, &job).filter(|_| !ran) {
        return Err(reason.into());
    }
    let seconds = if ran { seconds(row, &model, batch, cluster.devices) } else { None };
    let memory = number(row, "mem_gb").filter(|_| ran).map(|amount| {
        let unit = text(row, "mem_unit").unwrap_or("GB");
        // nanotron's GB are powers of two.
        let is_binary = unit.contains("GiB") || unit.contains("nanotron");
        amount * if is_binary { f64::from(1_u32 << 30) } else { 1e9 }
    });
    let is_slow = status == "ok-suspect-slow";
    let published = PublishedRun {
        id: text(row, "id").unwrap_or("row").to_owned(),
        sweep,
        table: table(row, layout.zero),
        model,
        cluster,
        layout,
        batch,
        framework,
        seconds: seconds.filter(|_| !is_memory_only && !is_slow),
        memory,
        ran: Some(ran),
    };
    let wrong = published.job().problems();
    match wrong.into_iter().find(|line| !line.starts_with("tensor =") || ran) {
        Some(line) => Err(line),
        None if ran && published.seconds.is_none() && published.memory.is_none() => {
            Err(if is_slow { "its status is \"ok-suspect-slow\"" } else { "nothing measured" }
                .into())
        }
        None => Ok(published),
    }
}

/// Table of the source; ZeRO-3 runs form their own (`Table 2, ZeRO 3`).
fn table(row: &Row, zero: u8) -> String {
    let table = text(row, "locator").unwrap_or("all");
    if zero == 3 { format!("{table}, ZeRO 3") } else { table.to_owned() }
}

/// Step time in seconds: as published, from tokens per second, or from FLOP/s under their
/// convention.
fn seconds(row: &Row, model: &Model, batch: u64, devices: u64) -> Option<f64> {
    if let Some(seconds) = number(row, "step_time_s") {
        return Some(seconds);
    }
    let tokens = (batch * model.context) as f64;
    if let Some(rate) = number(row, "tok_s_gpu") {
        return Some(tokens / (rate * devices as f64));
    }
    let rate = number(row, "tflops_gpu")? * 1e12 * devices as f64;
    let kind = text(row, "tflops_kind").unwrap_or("model");
    let counted = match kind {
        kind if kind.contains("hardware") => FlopsConvention::Hardware,
        kind if kind.contains("causal") => FlopsConvention::Causal,
        _ => FlopsConvention::Model,
    };
    Some(step_flops(model, batch, counted) / rate)
}

fn model(row: &Row) -> Result<Model, String> {
    let arch = text(row, "arch").unwrap_or("gpt").to_lowercase();
    let name = text(row, "model").unwrap_or("model");
    let (layers, width) = (need(row, "layers")?, need(row, "hidden")?);
    let (heads, context) = (need(row, "heads")?, need(row, "seq")?);
    let vocab = whole(row, "vocab").unwrap_or(51_200);
    let is_llama = ["llama", "swiglu", "moe", "rope"].iter().any(|word| arch.contains(word));
    let mut model = if is_llama {
        let ffn = need(row, "ffn")?;
        let kv_heads = whole(row, "kv_heads").unwrap_or(heads);
        Model::llama(name, layers, width, heads, kv_heads, ffn).reading(vocab, context)
    } else {
        let gpt = Model::gpt(name, layers, width, heads, vocab, context);
        let ffn = whole(row, "ffn").unwrap_or(4 * width);
        let kv_heads = whole(row, "kv_heads").unwrap_or(heads);
        let has_table = !["alibi", "bloom"].iter().any(|word| arch.contains(word));
        let positions = if has_table { context } else { 0 };
        Model { kv_heads, ffn, positions, ..gpt }
    };
    let says =
        |word: &str| text(row, "notes").is_some_and(|notes| notes.to_lowercase().contains(word));
    if arch.contains("flash") || says("flash attention") || says("flashattention") {
        model.attention = Attention::Fused;
    }
    if arch.contains("moe") {
        model.experts = Some(Experts {
            num: digits_before(&arch, "experts").ok_or("the number of experts is not published")?,
            per_token: behind(&arch, "top").ok_or("experts of a token are not published")?,
            ffn: behind(&arch, "moe_ffn").unwrap_or(model.ffn),
            shared_ffn: behind(&arch, "shared").unwrap_or(0),
            // Models with latent attention begin with a dense layer.
            dense_layers: behind(&arch, "dense_layers").unwrap_or(u64::from(arch.contains("mla"))),
            router_bias: false,
        });
    }
    if arch.contains("mla") {
        model.head_dim = 128;
        model.latent = Some(Latent::DEEPSEEK);
    }
    if let Some(billions) = number(row, "params_b") {
        let distance = |tied: bool| {
            let params = Model { tied, ..model.clone() }.num_params() as f64;
            (params / 1e9 - billions).abs()
        };
        model.tied = distance(true) < distance(false);
    }
    Ok(model)
}

fn digits_before(text: &str, word: &str) -> Option<u64> {
    let before = text[..text.find(word)?].trim_end();
    let start = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |index| index + 1);
    before[start..].parse().ok()
}

fn cluster(row: &Row) -> Result<Cluster, String> {
    let name = text(row, "gpu").ok_or("gpu is not published")?;
    let lower = name.to_lowercase();
    let family =
        ["v100", "a100", "a800", "h100", "h200", "h800", "gb200", "b200", "mi250x", "mi300x"]
            .into_iter()
            .chain(["tpu-v4", "tpu-v5p", "gaudi2"])
            .find(|family| lower.replace(' ', "-").contains(family))
            .ok_or_else(|| format!("gpu = {name:?} is not known"))?;
    let memory = number(row, "gpu_mem_gb").unwrap_or(80.0);
    let is_pcie = lower.contains("pcie");
    let device = crate::hardware::DEVICES
        .iter()
        .filter(|device| device.name.starts_with(family))
        .filter(|device| device.name.ends_with("pcie") == is_pcie)
        .min_by(|a, b| (a.memory_gb - memory).abs().total_cmp(&(b.memory_gb - memory).abs()))
        .or_else(|| crate::hardware::DEVICES.iter().find(|device| device.name.starts_with(family)))
        .ok_or_else(|| format!("gpu = {name:?} is not known"))?;
    let mut cluster = Cluster::of(Device { memory_gb: memory, ..*device }, need(row, "gpus")?);
    if let Some(per_node) = whole(row, "gpus_per_node").filter(|count| *count > 0) {
        cluster.per_node = per_node;
    }
    if let Some(gigabits) = number(row, "inter_gbps_per_gpu").filter(|speed| *speed > 0.0) {
        cluster.network.device_gbps = gigabits / 8.0;
    }
    let notes = text(row, "notes").unwrap_or("").to_lowercase();
    cluster.network.is_ethernet = ["roce", "ethernet", "efa "].iter().any(|w| notes.contains(w));
    Ok(cluster)
}

fn layout(row: &Row, model: &Model, cluster: &Cluster) -> Result<Layout, String> {
    let degree = |column: &str| whole(row, column).unwrap_or(1).max(1);
    let (tensor, pipeline, context) = (need(row, "tp")?, need(row, "pp")?, degree("cp"));
    let data = whole(row, "dp").unwrap_or(cluster.devices / (tensor * pipeline * context)).max(1);
    let microbatch = match whole(row, "mbs").filter(|count| *count > 0) {
        Some(count) => count,
        None if pipeline > 1 => 1,
        None => return Err("mbs is not published".into()),
    };
    let schedule_name = text(row, "schedule").unwrap_or("none").to_lowercase();
    let names = |labels: &[&str]| labels.iter().any(|label| schedule_name.contains(label));
    let (schedule, chunks) = match () {
        () if pipeline == 1 => (Kind::OneFOneB, 1),
        () if names(&["gpipe", "afab"]) => (Kind::GPipe, 1),
        () if names(&["zb-2p", "zb-h2"]) => (Kind::ZeroBubbleTwice, 1),
        () if names(&["zb-"]) => (Kind::ZeroBubble, 1),
        () => {
            // Without a published number of virtual stages, the fewest that divide the layers.
            let said = whole(row, "vpp").filter(|count| *count > 0);
            let each = model.layers / pipeline;
            let fewest = (2..=each).find(|count| each.is_multiple_of(*count));
            let usual = if names(&["interleaved", "1f1b-i"]) { fewest.unwrap_or(1) } else { 1 };
            match said.unwrap_or(usual) {
                1 => (Kind::OneFOneB, 1),
                chunks => (Kind::Interleaved, chunks),
            }
        }
    };
    let recompute = text(row, "recompute").unwrap_or("none").to_lowercase();
    let named = Recompute::NAMES.iter().find(|name| recompute.starts_with(**name));
    let recompute = named
        .and_then(|name| Recompute::from_name(name))
        .ok_or_else(|| format!("recompute = {recompute:?} is not known"))?;
    Ok(Layout {
        tensor,
        sequence: whole(row, "sp").unwrap_or(0) > 0 && tensor > 1,
        pipeline,
        chunks,
        schedule,
        context,
        expert: degree("ep"),
        data,
        zero: whole(row, "zero").unwrap_or(0).min(3) as u8,
        offload: match text(row, "notes").unwrap_or("") {
            notes if notes.contains("optimizer offload") => {
                Offload::to_host(OffloadedStates::Optimizer)
            }
            _ => Offload::NONE,
        },
        microbatch,
        recompute,
    })
}

#[cfg(test)]
mod tests {
    use super::super::csv;
    use super::*;

    /// Error of a valid row with one cell replaced.
    fn reason(column: &str, cell: &str) -> String {
        let mut row = csv::parse(
            "id,layers,hidden,heads,seq,gpu,gpus,tp,pp,gbs,mbs,step_time_s\n\
             one,24,2048,16,2048,A100,8,1,1,64,8,1.5\n",
        )
        .remove(0);
        assert!(read(&row).is_ok(), "{:?}", read(&row));
        row.insert(column.to_owned(), cell.to_owned());
        read(&row).expect_err("it is wrong")
    }

    #[test]
    fn cells_that_are_not_numbers_are_reported() {
        assert_eq!(reason("gbs", "x"), "gbs = \"x\" is no number");
        assert_eq!(reason("tp", "-2"), "tp = -2 is not zero or more");
        assert_eq!(reason("step_time_s", "0"), "step_time_s = 0 is not above zero and finite");
        assert_eq!(reason("layers", "0"), "layers is not published");
        assert_eq!(reason("layers", "24.5"), "layers = 24.5 is no whole number up to 10000000");
        assert_eq!(reason("hidden", "1e15"), "hidden = 1e15 is no whole number up to 10000000");
        assert_eq!(reason("zero", "7"), "zero = 7 is no stage");
    }

    #[test]
    fn missing_values_and_text_after_a_number_are_accepted() {
        let table = |vpp: &str, gbs: &str| {
            let header = "id,layers,hidden,heads,seq,gpu,gpus,tp,pp,vpp,gbs,mbs,step_time_s";
            let row = format!("one,24,2048,16,2048,A100,8,1,1,{vpp},{gbs},8,1.5");
            read(&csv::parse(&format!("{header}\n{row}\n")).remove(0))
        };
        let plain = table("", "64").expect("a run");
        for (vpp, gbs) in [("n/a", "64"), ("-", "64 (padded)"), ("None", "6.4e1")] {
            assert_eq!(table(vpp, gbs), Ok(plain.clone()), "{vpp} {gbs}");
        }
    }

    #[test]
    fn a_table_without_the_columns_of_runs_is_reported() {
        let row = csv::parse("source,gpu,op,layers\na,b,c,24\n").remove(0);
        let reason = read(&row).expect_err("no run");
        assert!(reason.ends_with("it has no columns hidden, gpus, tp, pp"), "{reason}");
    }
}

//! Attention by cuDNN: its plans, their list, and calls.
//!
//! Plans are built at their first use and kept. Like the algorithms of products, the choice of a
//! plan belongs to the run: the list names the library, and for each problem the place of its plan
//! in the library's own list, or nothing where our kernels run.
//!
//! ```text
//! cuDNN 9.14.0
//! attention forward 64x1024x12x12x64 bf16 2304 2304 2304 = 0
//! ```

use super::Cuda;
use super::algorithms::{fields, refuse};
use super::cudnn::{Cudnn, Loaded};
use super::cudnn_attention::{Problem, fits, id};
use super::cudnn_graph::{ALIGNMENT, Plan};
use super::driver::{Context, Handle};
use crate::attention::Shape;
use crate::device::error::{DeviceError, Result};
use crate::device::profile::Operation;
use crate::device::view::Dtype;
use crate::gemm::Precision;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// Oldest supported version.
const MIN_VERSION: [i32; 3] = [9, 14, 0];
/// Architecture whose engines were measured: Hopper.
const CAPABILITY_MAJOR: i32 = 9;
/// Slot of the scratch memory that plans have their workspace in.
const WORKSPACE_SLOT: usize = 0;

/// Plans of a device, and the choices of the run.
pub(super) struct AttentionPlans {
    loaded: Loaded,
    /// Name and version of the library, which choices belong to.
    source: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The run began without the library, and continues so.
    is_off: bool,
    /// Plans in use, with their places in the library's list; `None` where it has none.
    plans: BTreeMap<Problem, Option<(usize, Plan)>>,
    /// Choices of an earlier process.
    stored: BTreeMap<Problem, Option<usize>>,
    /// Opened at the first plan.
    cudnn: Option<Cudnn>,
}

impl AttentionPlans {
    /// Loads the library, if there is one that fits the device.
    pub(super) fn load((major, _): (i32, i32)) -> Option<Self> {
        let loaded = (major == CAPABILITY_MAJOR).then(|| Loaded::load().ok()).flatten()?;
        let source = format!("cuDNN {}", loaded.version.map(|number| number.to_string()).join("."));
        let plans = Self { loaded, source, state: Mutex::default() };
        (loaded.version >= MIN_VERSION).then_some(plans)
    }

    /// The list of the plans that were chosen or set so far.
    pub(super) fn list(&self) -> String {
        let state = self.lock();
        if state.is_off {
            return String::new();
        }
        let mut all = state.stored.clone();
        let chosen = state.plans.iter();
        all.extend(chosen.map(|(problem, plan)| (*problem, plan.as_ref().map(|(i, _)| *i))));
        let line = |(problem, index): (&Problem, &Option<usize>)| match index {
            None => format!("{problem} =\n"),
            Some(index) => format!("{problem} = {index}\n"),
        };
        std::iter::once(format!("{}\n", self.source)).chain(all.iter().map(line)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call panics while it holds the plans")
    }

    /// Calls `body` with the plan of a problem; `None` if the library has none.
    fn with_plan<T>(
        &self,
        context: &Context,
        problem: &Problem,
        body: impl FnOnce(&Cudnn, &Plan) -> Result<T>,
    ) -> Result<Option<T>> {
        let state = &mut *self.lock();
        if state.is_off {
            return Ok(None);
        }
        if !state.plans.contains_key(problem) {
            context.activate()?;
            let plan = self.choose(state, context.stream, problem)?;
            state.plans.insert(*problem, plan);
        }
        let (Some(cudnn), Some(Some((_, plan)))) = (&state.cudnn, state.plans.get(problem)) else {
            return Ok(None);
        };
        body(cudnn, plan).map(Some)
    }

    /// The plan of the run's list, or the first that compiles.
    fn choose(
        &self,
        state: &mut State,
        stream: Handle,
        problem: &Problem,
    ) -> Result<Option<(usize, Plan)>> {
        let stored = state.stored.get(problem).copied();
        if stored == Some(None) {
            return Ok(None);
        }
        let mut build = || {
            if state.cudnn.is_none() {
                state.cudnn = Some(Cudnn::open(&self.loaded, stream)?);
            }
            let cudnn = state.cudnn.as_ref().expect("opened above");
            problem.plan(cudnn, stored.flatten())
        };
        match (build(), stored) {
            (Ok(plan), _) => Ok(plan),
            (Err(_), None) => Ok(None),
            (Err(error), Some(_)) => {
                let reason = format!("the stored plan of {problem} does not run here: {error}");
                let (call, code) = ("cudnnBackendFinalize", 0);
                Err(DeviceError::Failed { call, code, reason })
            }
        }
    }
}

/// Splits a list into those of products and of attention.
pub(super) fn split_list(list: &str) -> (&str, &str) {
    list.split_at(list.find("\ncuDNN ").map_or(list.len(), |end| end + 1))
}

/// Uses the choices of a list, which may be of a process without the library.
pub(super) fn set_list(plans: Option<&AttentionPlans>, list: &str) -> Result<()> {
    let mut lines = list.lines();
    let theirs = lines.next();
    let ours = plans.map(|plans| plans.source.as_str());
    match (plans, theirs) {
        (None, None) => Ok(()),
        (Some(plans), None) => {
            plans.lock().is_off = true;
            Ok(())
        }
        (Some(plans), Some(theirs)) if ours == Some(theirs) => {
            let mut stored = BTreeMap::new();
            for (i, line) in lines.enumerate() {
                match parse(line) {
                    Some((problem, index)) if stored.insert(problem, index).is_none() => {}
                    _ => return refuse(format!("line {} of the list of plans is damaged", i + 2)),
                }
            }
            let mut state = plans.lock();
            state.plans.retain(|problem, _| !stored.contains_key(problem));
            state.stored.extend(stored);
            Ok(())
        }
        (_, Some(theirs)) => {
            let theirs: String = theirs.chars().take(80).collect();
            let ours = ours.unwrap_or("no cuDNN 9.14 or later");
            refuse(format!(
                "attention ran by {theirs:?}, but this is {ours:?}; resume with that library, or \
                 start a new run from the weights"
            ))
        }
    }
}

impl fmt::Display for Problem {
    /// A line without an equals sign.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_backward, dtype, sizes: [b, t, h, kv_h, d], strides: [q, k, v] } = self;
        let direction = if *is_backward { "backward" } else { "forward" };
        write!(f, "attention {direction} {b}x{t}x{h}x{kv_h}x{d} {dtype} {q} {k} {v}")
    }
}

fn parse(line: &str) -> Option<(Problem, Option<usize>)> {
    let (problem, index) = line.split_once(" =")?;
    let [name, direction, sizes, dtype, q, k, v] =
        fields(problem, ' ', |field| Some(field.to_owned()))?;
    let is_backward = match (name.as_str(), direction.as_str()) {
        ("attention", "forward") => false,
        ("attention", "backward") => true,
        _ => return None,
    };
    let dtype = [Dtype::Bf16, Dtype::F16].into_iter().find(|own| own.to_string() == dtype)?;
    let sizes: [usize; 5] = fields(&sizes, 'x', |count| count.parse().ok())?;
    let strides = [q.parse().ok()?, k.parse().ok()?, v.parse().ok()?];
    let problem = Problem { is_backward, dtype, sizes, strides };
    if index.is_empty() {
        return Some((problem, None));
    }
    Some((problem, Some(index.strip_prefix(' ')?.parse().ok()?)))
}

/// A call of the library.
#[derive(Clone, PartialEq)]
pub(super) struct AttentionCall {
    problem: Problem,
    addresses: Addresses,
    gradients: Option<GradientAddresses>,
    scale: f32,
    workspace: u64,
}

/// Addresses of a call: queries, keys and values, output, log-sum-exp.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) qkv: [u64; 3],
    pub(super) out: u64,
    pub(super) lse: u64,
}

/// Further addresses of a backward call: the gradient of the output, a number for each query, and
/// the gradients of queries, keys and values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct GradientAddresses {
    pub(super) dout: u64,
    pub(super) delta: u64,
    pub(super) dqkv: [u64; 3],
}

impl Cuda {
    /// Attends by cuDNN; `false` if it is absent or has no plan.
    ///
    /// # Safety
    /// Addresses must be those of borrowed memory that the shape does not leave, and rows must be
    /// aligned to [`ALIGNMENT`].
    pub(super) unsafe fn attend_by_cudnn(
        &self,
        dtype: Dtype,
        shape: Shape,
        strides: [u64; 3],
        addresses: &Addresses,
        gradients: Option<&GradientAddresses>,
    ) -> Result<bool> {
        let all = all_addresses(addresses, gradients);
        let is_aligned = all.iter().all(|address| address.is_multiple_of(ALIGNMENT));
        let Some(plans) = self.attention_plans.as_ref().filter(|_| is_aligned && fits(shape))
        else {
            return Ok(false);
        };
        let problem =
            Problem::new(gradients.is_some(), dtype, shape, strides.map(|stride| stride as usize));
        let bytes = |_: &Cudnn, plan: &Plan| Ok(plan.workspace_bytes);
        let Some(bytes) = plans.with_plan(&self.context, &problem, bytes)? else {
            return Ok(false);
        };
        let (addresses, gradients, scale) = (*addresses, gradients.copied(), shape.scale());
        let name = match gradients {
            None => "attention_forward (cuDNN)",
            Some(_) => "attention_backward (cuDNN)",
        };
        // The plans are not locked here: commands that were held back may need them.
        self.with_scratch(WORKSPACE_SLOT, bytes, |workspace| {
            let call = AttentionCall { problem, addresses, gradients, scale, workspace };
            let operation = || (Operation::Kernel(name, dtype), None);
            // SAFETY: the caller guarantees the memory.
            unsafe { self.submit_attention(call, operation) }
        })?;
        Ok(true)
    }

    /// Queues a call that has a plan on a stream.
    ///
    /// # Safety
    /// As that of [`Self::attend_by_cudnn`].
    pub(super) unsafe fn execute_attention(
        &self,
        call: &AttentionCall,
        stream: Handle,
    ) -> Result<()> {
        let AttentionCall { problem, addresses, gradients, scale, workspace } = call;
        let plans = self.attention_plans.as_ref().expect("the call has a plan");
        let values = [*scale, f32::NEG_INFINITY, 1.0];
        let queued = plans.with_plan(&self.context, problem, |cudnn, plan| {
            let queue = || {
                for tensors in parts(problem, addresses, gradients.as_ref(), &values) {
                    // SAFETY: the caller guarantees the memory of all parts; values live here.
                    unsafe { plan.execute(cudnn, &tensors, *workspace)? };
                }
                Ok(())
            };
            if stream == self.context.stream {
                return queue();
            }
            cudnn.set_stream(stream)?;
            let queued = queue();
            cudnn.set_stream(self.context.stream)?;
            queued
        })?;
        assert!(queued.is_some(), "the call has a plan");
        Ok(())
    }
}

/// Bytes of workspace of a training step's calls without dropout, where cuDNN is installed.
pub(super) fn workspace_bytes(precision: Precision, shape: Shape) -> usize {
    let dtype = Dtype::of_operands(precision);
    let stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    if dtype != Dtype::F32 && fits(shape) {
        Problem::new(true, dtype, shape, [stride; 3]).workspace_bytes()
    } else {
        0
    }
}

/// All addresses of a call.
fn all_addresses(addresses: &Addresses, gradients: Option<&GradientAddresses>) -> Vec<u64> {
    let Addresses { qkv: [q, k, v], out, lse } = *addresses;
    let mut all = vec![q, k, v, out, lse];
    if let Some(GradientAddresses { dout, delta, dqkv: [dq, dk, dv] }) = gradients {
        all.extend([*dout, *delta, *dq, *dk, *dv]);
    }
    all
}

/// Tensors of each execution.
fn parts(
    problem: &Problem,
    addresses: &Addresses,
    gradients: Option<&GradientAddresses>,
    [scale, masked, one]: &[f32; 3],
) -> Vec<Vec<(i64, u64)>> {
    let [sequences, tokens, heads, kv_heads, head_dim] = problem.sizes;
    let (part_sequences, part_kv_heads) = problem.part().expect("it has a plan");
    let (size, row_len) = (problem.dtype.size(), (heads + 2 * kv_heads) * head_dim);
    let host = |value: &f32| (&raw const *value).addr() as u64;
    let mut parts = Vec::new();
    for sequence in (0..sequences).step_by(part_sequences) {
        for kv_head in (0..kv_heads).step_by(part_kv_heads) {
            let head = kv_head * (heads / kv_heads);
            let rows = |address: u64, stride: usize, head: usize| {
                address + ((sequence * tokens * stride + head * head_dim) * size) as u64
            };
            let statistics =
                |address: u64| address + ((sequence * heads + head) * tokens * 4) as u64;
            let ([q, k, v], [q_stride, k_stride, v_stride]) = (addresses.qkv, problem.strides);
            let mut tensors = vec![
                (id::Q, rows(q, q_stride, head)),
                (id::K, rows(k, k_stride, kv_head)),
                (id::V, rows(v, v_stride, kv_head)),
                (id::OUT, rows(addresses.out, heads * head_dim, head)),
                (id::LSE, statistics(addresses.lse)),
                (id::SCALE, host(scale)),
                (id::MASKED, host(masked)),
            ];
            if let Some(GradientAddresses { dout, delta, dqkv: [dq, dk, dv] }) = gradients {
                tensors.extend([
                    (id::DOUT, rows(*dout, heads * head_dim, head)),
                    (id::DELTA, statistics(*delta)),
                    (id::DQ, rows(*dq, row_len, head)),
                    (id::DK, rows(*dk, row_len, kv_head)),
                    (id::DV, rows(*dv, row_len, kv_head)),
                    (id::ONE, host(one)),
                ]);
            }
            parts.push(tensors);
        }
    }
    parts
}

//! Initial weights as a function of (seed, name, element).
//!
//! Any rank can fill any part of any parameter, and every layout starts from equal bits. The scheme
//! is that of GPT-2 (Radford et al. 2019): matrices and embeddings are normal with standard
//! deviation 0.02; projections that write into the residual stream are divided by the square root
//! of their number, so that the stream's variance does not grow with depth. A mirror has the
//! initial values of its owner. The host computes them for every device.

use crate::param::{Init, Param};
use lockstep_tensor::Cpu;
use lockstep_tensor::random::{self, Key};

/// Embeddings and heads; for hidden matrices see `mup`.
pub(crate) const MATRIX: Init = Init::Normal { std: 0.02 };

/// Fills `out` with the initial values of `param` from `first_element` on.
///
/// ```
/// use lockstep_model::{Init, Param, Piece, init};
/// use lockstep_tensor::{Cpu, Isa};
///
/// let cpu = Cpu::single(Isa::detect());
/// let param = Param {
///     name: "transformer.wte.weight".to_string(),
///     shape: vec![5, 4],
///     piece: Piece::whole(&[5, 4]),
///     offset: 0,
///     init: Init::Normal { std: 0.02 },
///     decay: true,
///     mirror_of: None,
/// };
/// let (mut whole, mut tail) = ([0.0; 20], [0.0; 7]);
/// init::fill(&cpu, 1, &param, 0, &mut whole);
/// init::fill(&cpu, 1, &param, 13, &mut tail);
/// assert_eq!(whole[13..], tail);
/// ```
pub fn fill(cpu: &Cpu, seed: u64, param: &Param, first_element: usize, out: &mut [f32]) {
    assert!(first_element + out.len() <= param.len(), "{} is shorter", param.name);
    let key = Key::new(seed, param.mirror_of.as_ref().unwrap_or(&param.name));
    let fill_runs: &dyn Fn(u64, &mut [f32]) = match param.init {
        Init::Zeros => return out.fill(0.0),
        Init::Ones => return out.fill(1.0),
        Init::Normal { std } => &move |first, out| random::fill_normal(cpu, key, first, std, out),
        Init::Uniform { bound } => &move |first, out| {
            for (element, value) in (first..).zip(out) {
                *value = ((2.0 * key.uniform_f64(element) - 1.0) * f64::from(bound)) as f32;
            }
        },
    };
    for (run, place) in param.runs(first_element..first_element + out.len()) {
        fill_runs(place as u64, &mut out[run.start - first_element..run.end - first_element]);
    }
}

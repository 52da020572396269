//! Algorithms of products: from the list of the run, or from the library's heuristic, once per
//! product; only those that add partial sums in a fixed order.
//!
//! The heuristic's first algorithm is taken as it is. Timing all of its algorithms with equal bits,
//! of up to eight a product, and taking the fastest made no step of GPT-2 124M or of a Llama with
//! 1.16 billion parameters faster on an H200, which is at its power limit there.

use super::algorithms::{self, Algorithm, Lists, Operands, WORKSPACE_BYTES};
use super::cublas_lt::{
    Candidate, CublasLt, Descriptor, INVALID_VALUE, NOT_SUPPORTED, Prepared, check,
};
use crate::device::error::{DeviceError, Result};
use std::ffi::c_int;
use std::sync::MutexGuard;

const PREFERENCE_WORKSPACE: c_int = 1;
const PREFERENCE_REDUCTIONS: c_int = 3;
const PREFERENCE_ALIGNMENT_A: c_int = 5;
/// Partial sums go through the workspace in the type of the sum, never through atomics.
const REDUCTION_IN_SUM_TYPE: u32 = 2;
impl CublasLt {
    /// The list of the algorithms that were chosen or set so far.
    pub(super) fn algorithms(&self) -> String {
        let lists = self.lock();
        let mut all = lists.stored.clone();
        all.extend(&lists.chosen);
        algorithms::write(&self.source, &all)
    }

    /// Uses the algorithms of a list for its products, instead of those chosen so far too.
    pub(super) fn set_algorithms(&self, list: &str) -> Result<()> {
        let stored = algorithms::read(&self.source, list)?;
        let mut lists = self.lock();
        lists.chosen.retain(|problem, _| !stored.contains_key(problem));
        lists.stored.extend(stored);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().expect("no call panics while it holds the lists")
    }

    /// The algorithm of a product, from the lists or from the heuristic.
    pub(super) fn choose(&self, prepared: &Prepared<'_>) -> Result<Option<Algorithm>> {
        let mut lists = self.lock();
        if let Some(algorithm) = lists.chosen.get(&prepared.problem) {
            return Ok(*algorithm);
        }
        let algorithm = match lists.stored.get(&prepared.problem) {
            Some(stored) => {
                if let Some(algorithm) = stored {
                    self.check_stored(prepared, algorithm)?;
                }
                *stored
            }
            None => self.search(prepared)?,
        };
        lists.chosen.insert(prepared.problem, algorithm);
        Ok(algorithm)
    }

    /// Lets the library check an algorithm that it did not choose in this process.
    fn check_stored(&self, prepared: &Prepared<'_>, algorithm: &Algorithm) -> Result<()> {
        let Prepared { problem, desc, layouts: [first, second, target], .. } = prepared;
        let [first, second, target] = [first, second, target].map(|layout| layout.handle);
        let (data, mut checked) = (&raw const algorithm.data, Candidate::default());
        let (call, check) = ("cublasLtMatmulAlgoCheck", self.functions.algorithm_check);
        // SAFETY: all descriptors are valid; writes one candidate.
        let code = unsafe {
            let out = &raw mut checked;
            check(self.handle, desc.handle, first, second, target, target, data, out)
        };
        let code = if code == 0 { checked.status } else { code };
        if code == 0 && checked.workspace_bytes <= WORKSPACE_BYTES {
            return Ok(());
        }
        let reason = format!("the stored algorithm of product {problem} does not run here");
        Err(DeviceError::Failed { call, code, reason })
    }

    /// The first algorithm of the heuristic, if it has one.
    fn search(&self, prepared: &Prepared<'_>) -> Result<Option<Algorithm>> {
        let Prepared { problem, desc, layouts: [first, second, target], .. } = prepared;
        let f = &self.functions;
        let name = "cublasLtMatmulPreferenceCreate";
        // SAFETY: writes the handle.
        let preference = Self::create(f.preference_destroy, name, |handle| unsafe {
            (f.preference_create)(handle)
        })?;
        self.prefer(&preference, PREFERENCE_WORKSPACE, &WORKSPACE_BYTES)?;
        self.prefer(&preference, PREFERENCE_REDUCTIONS, &REDUCTION_IN_SUM_TYPE)?;
        let [of_first, of_second, of_target] = problem.alignments;
        for (i, bytes) in [of_first, of_second, of_target, of_target].into_iter().enumerate() {
            self.prefer(&preference, PREFERENCE_ALIGNMENT_A + i as c_int, &bytes)?;
        }
        let (mut found, mut count) = (Candidate::default(), 0);
        // SAFETY: all descriptors are valid; writes at most one candidate, and the count.
        let code = unsafe {
            (f.heuristic)(
                self.handle,
                desc.handle,
                first.handle,
                second.handle,
                target.handle,
                target.handle,
                preference.handle,
                1,
                &raw mut found,
                &raw mut count,
            )
        };
        // Beside block scales the library has few operations on the result.
        let is_fp8 = matches!(problem.operands, Operands::Fp8(_));
        if code != NOT_SUPPORTED && !(is_fp8 && code == INVALID_VALUE) {
            check("cublasLtMatmulAlgoGetHeuristic", code)?;
        }
        let Candidate { algorithm: data, workspace_bytes, status, .. } = found;
        let is_found = code == 0 && count > 0 && status == 0;
        Ok(is_found.then_some(Algorithm { data, workspace_bytes }))
    }

    fn prefer<T>(&self, preference: &Descriptor, attribute: c_int, value: &T) -> Result<()> {
        let (pointer, size) = ((&raw const *value).cast(), size_of::<T>());
        let handle = preference.handle;
        // SAFETY: the attribute has this size.
        let code = unsafe { (self.functions.preference_set)(handle, attribute, pointer, size) };
        check("cublasLtMatmulPreferenceSetAttribute", code)
    }
}

//! MinHash signatures (Broder 1997): the smallest hash of a document's shingles under each of many
//! permutations.
//!
//! A shingle is `shingle_terms` consecutive words; a shorter document is one shingle. Two documents
//! agree in a component of the signature with a probability equal to the Jaccard similarity of
//! their sets of shingles. A permutation is multiply-shift hashing (Dietzfelbinger et al. 1997).

use std::collections::VecDeque;

use super::SimilarityOptions;
use super::normalize::terms;
use crate::permutation::mix;

/// Signatures of documents.
#[derive(Debug)]
pub struct MinHash {
    shingle_terms: usize,
    /// Odd factor and summand of each permutation.
    permutations: Vec<(u64, u64)>,
    signature: Vec<u32>,
    window: VecDeque<u64>,
}

impl MinHash {
    /// Permutations of these options.
    pub fn new(options: SimilarityOptions) -> Self {
        let permutation = |index: usize| {
            let word = |purpose| mix(mix(options.seed, purpose), index as u64);
            (word(0) | 1, word(1))
        };
        Self {
            shingle_terms: options.shingle_terms,
            permutations: (0..options.num_permutations).map(permutation).collect(),
            signature: Vec::new(),
            window: VecDeque::new(),
        }
    }

    /// Signature of a normalised text; a text without words has the largest hashes.
    pub fn signature(&mut self, normal: &str) -> &[u32] {
        self.signature.clear();
        self.signature.resize(self.permutations.len(), u32::MAX);
        self.window.clear();
        let mut has_shingle = false;
        for word in terms(normal) {
            if self.window.len() == self.shingle_terms {
                self.window.pop_front();
            }
            self.window.push_back(hash_word(word));
            if self.window.len() == self.shingle_terms {
                has_shingle = true;
                self.add_shingle();
            }
        }
        if !has_shingle && !self.window.is_empty() {
            self.add_shingle();
        }
        &self.signature
    }

    fn add_shingle(&mut self) {
        let shingle = self.window.iter().fold(self.window.len() as u64, |s, &word| mix(s, word));
        for (least, &(factor, summand)) in self.signature.iter_mut().zip(&self.permutations) {
            let hash = (shingle.wrapping_mul(factor).wrapping_add(summand) >> 32) as u32;
            *least = (*least).min(hash);
        }
    }
}

fn hash_word(word: &str) -> u64 {
    let (chunks, rest) = word.as_bytes().as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let state = chunks.iter().fold(word.len() as u64, |s, &c| mix(s, u64::from_le_bytes(c)));
    mix(state, u64::from_le_bytes(last))
}

//! Spans from ids and from offsets: properties that every result must have. `PROPTEST_CASES` sets the number of
//! cases.

mod oracle;

use oracle::{boundaries, covers, index, spans_over_dropped};
use proptest::prelude::*;
use proptest::sample::select;
use vocagno::batch::{Batch, Rows};
use vocagno::mapping::unmapped_reasons_batch;
use vocagno::spans::{
    DummyPrefix, PieceRole, PieceTable, Span, TokenKind, chars_to_bytes, close, close_batch, close_ids,
    close_ids_batch, decode, decode_batch, restore_spaces, spans_from_ids, spans_from_ids_batch, spans_from_ids_into,
};
use vocagno::{Reduction, UNMAPPED, align, align_batch, align_into, reduce, unmapped_reasons};

// ---- spans from ids

const DUMMIES: [DummyPrefix; 4] =
    [DummyPrefix::None, DummyPrefix::Prepend, DummyPrefix::Metaspace, DummyPrefix::MetaspaceFirst];

/// A generated document: the bytes of each id and its span.
#[derive(Clone, Debug)]
struct Document {
    text: String,
    pieces: Vec<(Vec<u8>, bool)>,
    spans: Vec<Span<i32>>,
}

/// Segments of text between added tokens, cut at any byte, with the dummy prefix that the tokenizer would insert.
fn document(dummy: DummyPrefix) -> impl Strategy<Value = Document> {
    let segment = ("[ ab∑😊]{0,6}", prop::collection::vec(any::<bool>(), 32), any::<bool>());
    prop::collection::vec(segment, 0..4).prop_map(move |segments| {
        let mut made = Document { text: String::new(), pieces: Vec::new(), spans: Vec::new() };
        let add = |made: &mut Document, piece: &[u8], own: usize, added: bool| {
            let start = made.spans.last().map_or(0, |span| span[1]);
            made.spans.push([start, start + index(own)]);
            made.pieces.push((piece.to_vec(), added));
        };
        let mut ends_added = true; // adjacent segments without an added token between them are one
        for (text, cuts, ends_with_added) in segments {
            let has_dummy = match dummy {
                DummyPrefix::None => false,
                DummyPrefix::Prepend => ends_added,
                DummyPrefix::Metaspace => ends_added && !text.starts_with(' '),
                DummyPrefix::MetaspaceFirst => made.pieces.is_empty() && !text.starts_with(' '),
                other => unreachable!("{other:?} is not made here"),
            } && !text.is_empty();
            let surface = [if has_dummy { " " } else { "" }, &text].concat();
            let mut from = 0;
            for at in 1..=surface.len() {
                if cuts[at % cuts.len()] || at == surface.len() {
                    let dropped = usize::from(has_dummy && from == 0);
                    add(&mut made, &surface.as_bytes()[from..at], at - from - dropped, false);
                    from = at;
                }
            }
            made.text += &text;
            ends_added = text.is_empty() && ends_added;
            if ends_with_added {
                add(&mut made, b"<|x|>", 5, true);
                made.text += "<|x|>";
                ends_added = true;
            }
        }
        made
    })
}

fn table_of(documents: &[Document], dummy: DummyPrefix) -> PieceTable {
    let pieces: Vec<_> = documents.iter().flat_map(|document| document.pieces.clone()).collect();
    let role = |&(_, added): &(_, bool)| if added { PieceRole::Added } else { PieceRole::Plain };
    let roles: Vec<PieceRole> = pieces.iter().map(role).collect();
    PieceTable::new(pieces.into_iter().map(|(piece, _)| Some(piece)), &roles, dummy).expect("flags fit")
}

fn documents() -> impl Strategy<Value = (DummyPrefix, Vec<Document>)> {
    select(DUMMIES.to_vec()).prop_flat_map(|dummy| (Just(dummy), prop::collection::vec(document(dummy), 0..4)))
}

proptest! {
    #[test]
    fn ids_prove_the_text_they_were_made_from((dummy, documents) in documents(), spoilt in any::<prop::sample::Index>()) {
        let table = table_of(&documents, dummy);
        let cu = boundaries(documents.iter().map(|document| document.pieces.len()));
        let ids: Vec<i32> = (0..index(table.len())).collect();
        let mut texts: Vec<String> = documents.iter().map(|document| document.text.clone()).collect();
        let expected: Vec<_> = documents.iter().flat_map(|document| document.spans.clone()).collect();
        let rows = Rows::new(&cu, ids.len())?;
        let (spans, proved) = spans_from_ids_batch(&table, &ids, rows, &texts)?;
        prop_assert_eq!(&spans, &expected);
        prop_assert!(proved.iter().all(|&proved| proved));

        if !documents.is_empty() {
            let spoilt = spoilt.index(documents.len());
            texts[spoilt].push('!');
            let (spans, proved) = spans_from_ids_batch(&table, &ids, rows, &texts)?;
            prop_assert!(proved.iter().enumerate().all(|(row, &proved)| proved == (row != spoilt)));
            for (row, tokens) in rows.iter() {
                let zeros = vec![[0; 2]; tokens.len()];
                prop_assert_eq!(&spans[tokens.clone()], if row == spoilt { &zeros[..] } else { &expected[tokens] });
            }
        }
    }

    #[test]
    fn what_is_proved_is_true(dummy in select(DUMMIES.to_vec()), added in select(vec![PieceRole::Added, PieceRole::Special]), ids in prop::collection::vec(-1..6_i32, 0..6), text in "[ ab]{0,6}") {
        let pieces = [Some(" "), Some(" a"), Some("a"), Some("b"), None];
        let mut roles = [PieceRole::Plain; 5];
        roles[3] = added;
        let table = PieceTable::new(pieces, &roles, dummy)?;
        let mut spans = vec![[7; 2]; ids.len()];
        if spans_from_ids_into(&table, &ids, text.as_bytes(), &mut spans)? {
            prop_assert!(covers(&spans, &text));
            for (&id, &[start, end]) in ids.iter().zip(&spans) {
                let piece = usize::try_from(id).ok().and_then(|id| pieces[id]).unwrap_or("?");
                let own = &text.as_bytes()[usize::try_from(start).expect("inside")..usize::try_from(end).expect("inside")];
                let beside = added == PieceRole::Special && id == 3 && own.is_empty();
                prop_assert!(beside || piece.as_bytes() == own || piece.as_bytes() == [b" ", own].concat());
            }
        } else {
            prop_assert!(spans.iter().all(|&span| span == [0; 2]));
        }
    }

    #[test]
    fn ids_alone_give_the_text_they_were_made_from((dummy, documents) in documents()) {
        let table = table_of(&documents, dummy);
        let cu = boundaries(documents.iter().map(|document| document.pieces.len()));
        let ids: Vec<i32> = (0..index(table.len())).collect();
        let rows = Rows::new(&cu, ids.len())?;
        let (texts, decoded) = decode_batch(&table, &ids, rows, false)?;
        for (text, document) in texts.iter().zip(&documents) {
            // If the dummy prefix depends on the text, one leading space of a segment is lost with it.
            let lost = document.text.len() - text.len();
            prop_assert!(text == document.text.as_bytes() || lost > 0);
            let segments = document.text.split("<|x|>").filter(|segment| {
                segment.starts_with(' ') && !segment.starts_with("  ") && segment.len() > 1
            });
            let most = match dummy {
                DummyPrefix::None | DummyPrefix::Prepend => 0,
                DummyPrefix::Metaspace => segments.count(),
                DummyPrefix::MetaspaceFirst => 1,
                other => unreachable!("{other:?} is not made here"),
            };
            prop_assert!(lost <= most, "{dummy:?} {text:?}");
        }
        let (spans, proved) = spans_from_ids_batch(&table, &ids, rows, &texts)?;
        prop_assert!(proved.iter().all(|&proved| proved));
        prop_assert_eq!(spans, decoded);
    }

    #[test]
    fn special_tokens_need_not_be_in_the_text(segments in prop::collection::vec("[ab]{1,3}", 0..4), before in any::<bool>()) {
        let table = PieceTable::new(["a", "b", "<s>"].map(Some), &[PieceRole::Plain, PieceRole::Plain, PieceRole::Special], DummyPrefix::None)?;
        let (mut ids, mut expected, mut at) = (Vec::new(), Vec::new(), 0);
        let text = segments.concat();
        for segment in &segments {
            if before {
                ids.push(2);
                expected.push([at; 2]);
            }
            for byte in segment.bytes() {
                ids.push(i32::from(byte - b'a'));
                expected.push([at, at + 1]);
                at += 1;
            }
        }
        let (decoded, spans) = decode(&table, &ids)?;
        prop_assert_eq!(decoded, text.as_bytes());
        prop_assert_eq!(&spans, &expected);
        prop_assert_eq!(spans_from_ids(&table, &ids, text.as_bytes())?, Some(expected));
    }

    #[test]
    fn dropped_bytes_have_one_place(text in "[ab\r\u{3000}é∑😊]{0,8}", dropped in prop::collection::btree_set(select("b\r\u{3000}é∑😊".bytes().collect::<Vec<_>>()), 1..6), cuts in prop::collection::vec(any::<bool>(), 32), spoilt in any::<bool>()) {
        let kept: Vec<u8> = text.bytes().filter(|byte| !dropped.contains(byte)).collect();
        let ends: Vec<usize> = (1..=kept.len()).filter(|&at| cuts[at % 32] || at == kept.len()).collect();
        let starts = [0].into_iter().chain(ends.iter().copied());
        let mut pieces: Vec<Vec<u8>> = starts.zip(&ends).map(|(start, &end)| kept[start..end].to_vec()).collect();
        let ids: Vec<i32> = (0..index(pieces.len())).collect();
        let expected = spans_over_dropped(&text, &dropped, &ids.iter().zip(&pieces).flat_map(|(&id, piece)| vec![id; piece.len()]).collect::<Vec<_>>());
        pieces.extend((0..=255).filter(|byte| !dropped.contains(byte)).map(|byte| vec![byte]));
        let table = PieceTable::new(pieces.iter().map(Some), &vec![PieceRole::Plain; pieces.len()], DummyPrefix::None)?.dropping_bytes();
        let mut spans = vec![[7; 2]; ids.len()];
        let text = if spoilt { [&text, "!"].concat() } else { text };
        let proved = spans_from_ids_into(&table, &ids, text.as_bytes(), &mut spans)?;
        prop_assert_eq!(proved, !spoilt && (text.is_empty() || !ids.is_empty()));
        prop_assert_eq!(spans, if proved { expected } else { vec![[0; 2]; ids.len()] });
    }

    #[test]
    fn trimmed_spaces_are_restored(text in "[ ab\n]{0,16}", cuts in prop::collection::vec(any::<bool>(), 16), at_start in any::<bool>()) {
        let mut ends: Vec<usize> = (1..text.len()).filter(|&at| cuts[at]).collect();
        ends.extend((!text.is_empty()).then_some(text.len()));
        let starts = [0].into_iter().chain(ends.iter().copied());
        let pieces: Vec<&str> = starts.zip(&ends).map(|(start, &end)| &text[start..end]).collect();
        let (mut exact, mut trimmed, mut at) = (Vec::new(), Vec::new(), 0);
        for piece in &pieces {
            let end = at + piece.len();
            let left = end - piece.trim_start_matches(' ').len();
            let right = (at + piece.trim_end_matches(' ').len()).max(left);
            exact.push([at, end].map(index));
            trimmed.push(if at_start && at == 0 && left == end { [0, 0] } else { [left, right].map(index) });
            at = end;
        }
        let table = PieceTable::new(pieces.iter().map(Some), &vec![PieceRole::Plain; pieces.len()], DummyPrefix::None)?;
        let ids: Vec<i32> = (0..index(pieces.len())).collect();
        let mut spans = trimmed.clone();
        restore_spaces(&table, &ids, &text, &mut spans)?;
        prop_assert_eq!(&spans, &exact);
        close_ids(&table, &ids, &mut trimmed, &text)?;
        prop_assert_eq!(trimmed, exact);
    }

    #[test]
    fn characters_are_found_in_bytes(text in "[a \u{301}∑😊]{0,9}", picks in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..9)) {
        let places: Vec<i32> = text.char_indices().map(|(at, _)| index(at)).chain([index(text.len())]).collect();
        let offsets: Vec<Span<i64>> = picks.iter().map(|pick| {
            let mut pair = pick.map(|pick| i64::try_from(pick.index(places.len())).expect("small"));
            pair.sort_unstable();
            pair
        }).collect();
        let expected = offsets.iter().map(|pair| pair.map(|at| places[usize::try_from(at).expect("small")])).collect();
        prop_assert_eq!(chars_to_bytes(&offsets, &text), Ok(expected));
        let past = i64::try_from(places.len()).expect("small");
        prop_assert!(chars_to_bytes(&[[0, past]], &text).is_err());
    }
}

// ---- closing holes

/// Ordered spans on character boundaries, some of them of zero width, of tokens of every kind.
fn holed() -> impl Strategy<Value = (String, Vec<Span<i32>>, Vec<TokenKind>)> {
    let kind =
        select(vec![TokenKind::Normal, TokenKind::Normal, TokenKind::Blank, TokenKind::Prefix, TokenKind::Special]);
    let token = (0..3_usize, 0..3_usize, 0..6_u8, kind);
    ("[a \u{301}∑😊]{0,9}", prop::collection::vec(token, 0..9)).prop_map(|(text, tokens)| {
        let places: Vec<i32> = text.char_indices().map(|(at, _)| index(at)).chain([index(text.len())]).collect();
        let last = places.len() - 1;
        let (mut start, mut end) = (0, 0);
        let (mut spans, mut kinds) = (Vec::new(), Vec::new());
        for (start_step, end_step, width, kind) in tokens {
            start = (start + start_step).min(last);
            end = (end + end_step).max(start).min(last);
            spans.push(match (kind, width) {
                (TokenKind::Special, _) => [0, 0],
                (_, 0) => [places[start]; 2],
                _ => [places[start], places[end]],
            });
            kinds.push(kind);
        }
        (text, spans, kinds)
    })
}

proptest! {
    #[test]
    fn closing_covers_the_text_in_order((text, spans, kinds) in holed()) {
        let mut closed = spans.clone();
        close(&mut closed, &text, &kinds)?;
        if kinds.contains(&TokenKind::Normal) || kinds.contains(&TokenKind::Blank) {
            prop_assert!(covers(&closed, &text), "{closed:?}");
        }
        let filled: Vec<_> = closed.iter().filter(|[start, end]| start < end).collect();
        let ordered = filled.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]);
        prop_assert!(ordered, "{closed:?}");
        for ((before, after), kind) in spans.iter().zip(&closed).zip(&kinds) {
            match kind {
                TokenKind::Special => prop_assert_eq!(before, after),
                TokenKind::Prefix => prop_assert!(0 <= after[0] && after[0] <= after[1]),
                TokenKind::Blank => prop_assert!(after[0] < after[1] || text.is_empty(), "{closed:?}"),
                TokenKind::Normal => {
                    prop_assert!(after[0] < after[1] || text.is_empty(), "{closed:?}");
                    prop_assert!(before[0] == before[1] || (after[0] <= before[0] && before[1] <= after[1]));
                }
                other => unreachable!("{other:?} is not made here"),
            }
        }
        let mut batch = [&spans[..], &spans[..]].concat();
        let cu = boundaries([spans.len(); 2].into_iter());
        close_batch(&mut batch, Rows::new(&cu, 2 * spans.len())?, &[&text, &text], &[&kinds[..], &kinds[..]].concat())?;
        prop_assert_eq!(batch, [&closed[..], &closed[..]].concat());
    }

    #[test]
    fn closing_twice_is_closing_once((text, spans, kinds) in holed()) {
        let mut closed = spans;
        close(&mut closed, &text, &kinds)?;
        // A blank that got other characters than white space would give them up again.
        if !kinds.iter().any(|kind| matches!(kind, TokenKind::Blank | TokenKind::Prefix)) {
            let once = closed.clone();
            close(&mut closed, &text, &kinds)?;
            prop_assert_eq!(closed, once);
        }
    }

    #[test]
    fn nothing_panics(
        spans in prop::collection::vec(any::<[i32; 2]>(), 0..5),
        near in prop::collection::vec([-1..8_i32, -1..8_i32], 0..5),
        cu in prop::collection::vec(-1..6_i64, 0..4),
        text in "[a ∑]{0,3}",
    ) {
        let kinds = vec![TokenKind::Blank; near.len()];
        let table = PieceTable::new([" ", "a", " a ", "<s>"].map(Some), &[PieceRole::Plain; 4], DummyPrefix::Metaspace)?;
        for spans in [&spans, &near] {
            let _ = close(&mut spans.clone(), &text, &kinds);
            let _ = chars_to_bytes(spans, &text);
            let ids: Vec<i32> = spans.iter().map(|span| span[0]).collect();
            let _ = restore_spaces(&table, &ids, &text, &mut spans.clone());
            let _ = close_ids(&table, &ids, &mut spans.clone(), &text);
            let _ = decode(&table, &ids);
            for tokens in [spans.len(), 3] {
                let Ok(rows) = Rows::new(&cu, tokens) else { continue };
                for rows in rows.split().map_or([rows; 2], |(left, right)| [left, right]) {
                    let _ = close_batch(&mut spans.clone(), rows, &[&text], &kinds);
                    let _ = close_ids_batch(&table, &ids, &mut spans.clone(), rows, &[&text]);
                    let _ = decode_batch(&table, &ids, rows, false);
                    let _ = spans_from_ids_batch(&table, &ids, rows, &[&text]);
                }
            }
            let _ = align(spans, &near);
            let _ = align_into(spans, &near, &mut [UNMAPPED; 2]);
            let _ = reduce(&[1.0_f32; 4], spans, Reduction::Mean);
            let _ = unmapped_reasons(&near, spans, spans, Some(&[1.0_f32; 4]));
            if let Ok(batch) = Batch::new(spans, &cu, &near, &cu) {
                let _ = align_batch(&batch);
                let _ = unmapped_reasons_batch(&batch, spans, Some(&[1.0_f32; 4]));
            }
        }
    }
}

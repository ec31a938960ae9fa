package repository

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/sekali/sekali/job"
)

// A notice travels as one line of words: what begins it, the sender, and then one
// word for each thing, whose first letter tells what it is. Its letters need no
// quoting anywhere.
//
//	1 w-7F3K… tinvoice c<id>.<token> e<id>.<version>.s +
//
// An id is its 16 bytes in base64. Words that a later version adds are skipped; a
// line that begins in another way says that something has happened.
const (
	noticeForm      = "1"
	claimableLetter = 't'
	cancelLetter    = 'c'
	endedLetter     = 'e'
	moreWord        = "+"
)

// noticeSize is below the 8000 bytes that Postgres takes.
const noticeSize = 7900

// endedLetters are the statuses that a job may have ended with.
var endedLetters = map[job.Status]string{job.Succeeded: "s", job.Failed: "f", job.Cancelled: "c"}

// noticeText writes as much of the notice as fits, first what nobody finds by
// looking: a request to cancel waits for a heartbeat.
func noticeText(from string, n job.Notice) string {
	w := noticeWriter{more: n.More}
	w.text.WriteString(noticeForm + " " + from)
	for _, l := range n.Cancelling {
		if id, ok := shortID(l.ID); ok {
			w.add(string(cancelLetter) + id + "." + strconv.FormatInt(l.Token, 10))
		}
	}
	for _, t := range n.Claimable {
		w.add(string(claimableLetter) + string(t))
	}
	for long, v := range n.Ended {
		id, ok := shortID(long)
		if letter := endedLetters[v.Status]; ok && letter != "" {
			w.add(string(endedLetter) + id + "." + strconv.FormatInt(v.Number, 10) + "." + letter)
		}
	}
	if w.more {
		w.text.WriteString(" " + moreWord)
	}
	return w.text.String()
}

type noticeWriter struct {
	text strings.Builder
	more bool
}

func (w *noticeWriter) add(word string) {
	if w.text.Len()+len(" ")+len(word)+len(" "+moreWord) > noticeSize {
		w.more = true
		return
	}
	w.text.WriteByte(' ')
	w.text.WriteString(word)
}

// readNotice reads a line. Anybody who may log in can send one, so what makes no
// sense is left out.
func readNotice(text string) (from string, n job.Notice) {
	words := strings.Fields(text)
	if len(words) < 2 || words[0] != noticeForm {
		return "", job.Notice{More: true}
	}
	for _, word := range words[2:] {
		rest := word[1:]
		switch {
		case word == moreWord:
			n.More = true
		case word[0] == claimableLetter && rest != "":
			n.Claimable = append(n.Claimable, job.Type(rest))
		case word[0] == cancelLetter:
			if id, token, ok := numbered(rest); ok {
				n.Cancelling = append(n.Cancelling, job.Lease{ID: id, Token: token})
			}
		case word[0] == endedLetter:
			if id, v, ok := endedJob(rest); ok {
				if n.Ended == nil {
					n.Ended = make(map[job.ID]job.Version, len(words))
				}
				n.Ended[id] = v
			}
		}
	}
	return words[1], n
}

// endedJob reads "id.version.letter".
func endedJob(word string) (job.ID, job.Version, bool) {
	at := strings.LastIndexByte(word, '.')
	if at < 0 {
		return "", job.Version{}, false
	}
	id, number, ok := numbered(word[:at])
	for status, letter := range endedLetters {
		if ok && letter == word[at+1:] {
			return id, job.Version{Number: number, Status: status}, true
		}
	}
	return "", job.Version{}, false
}

// numbered reads "id.number".
func numbered(word string) (job.ID, int64, bool) {
	short, text, _ := strings.Cut(word, ".")
	id, ok := longID(short)
	number, err := strconv.ParseInt(text, 10, 64)
	return id, number, ok && err == nil
}

// shortID is the id in 22 letters; it reports false for what is no UUID.
func shortID(id job.ID) (string, bool) {
	if _, err := job.ParseID(string(id)); err != nil {
		return "", false
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(string(id), "-", ""))
	return base64.RawURLEncoding.EncodeToString(raw), err == nil
}

// longID undoes shortID.
func longID(short string) (job.ID, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(short)
	if err != nil || len(raw) != 16 {
		return "", false
	}
	text := hex.EncodeToString(raw)
	return job.ID(text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]), true
}

package worker

import (
	"context"
	"slices"
	"time"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/room"
)

// Run schedules until ctx ends. Then the instance leaves: running requests have Config.Drain to end, the rest is aborted.
func (w *Worker) Run(ctx context.Context) error {
	step := w.prefillStep
	if w.cfg.Side == room.Decode {
		step = w.decodeStep
	}
	leave := ctx.Done()
	var deadline <-chan time.Time
	beat := time.NewTicker(500 * time.Millisecond)
	defer beat.Stop()
	for {
		w.beat.Store(time.Now().UnixNano())
		for _, p := range w.prefills {
			p.StillQueued()
		}
		w.start()
		busy := step()
		if busy && leave != nil && ctx.Err() == nil {
			continue
		}
		if leave == nil && w.idle() {
			return nil
		}
		wait := w.wake
		if busy {
			closed := make(chan struct{}, 1)
			closed <- struct{}{}
			wait = closed
		}
		select {
		case <-wait:
		case <-beat.C:
		case <-leave:
			leave = nil
			w.Leave()
			deadline = time.After(w.cfg.Drain)
		case <-deadline:
			w.abortAll()
			return nil
		}
	}
}

func (w *Worker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)+len(w.active) == 0
}

// abortAll ends what is left when the instance has no more time.
func (w *Worker) abortAll() {
	w.mu.Lock()
	all := append(slices.Clone(w.queue), w.active...)
	w.queue, w.active = nil, nil
	w.mu.Unlock()
	for _, j := range all {
		j.fail(room.NewCause(room.Draining, w.cfg.Side, "", "the instance has left"))
		w.drop(j)
	}
}

// fail ends a job with a cause on this and the other side.
func (j *job) fail(cause room.Cause) {
	j.end("", cause)
	if j.group != nil {
		j.group.Abort(cause)
	}
}

// start admits jobs from the head of the queue while there are pages for them, and takes out those that have ended.
func (w *Worker) start() {
	for {
		w.mu.Lock()
		w.queue = w.purge(w.queue)
		i := slices.IndexFunc(w.queue, func(j *job) bool { return w.cfg.Side == room.Decode || isReady(j.senders) })
		if i < 0 {
			w.mu.Unlock()
			return
		}
		j := w.queue[i]
		w.mu.Unlock()
		if !w.begin(j) {
			return
		}
		w.mu.Lock()
		w.queue, _ = take(w.queue, j)
		w.active = append(w.active, j)
		w.mu.Unlock()
	}
}

// purge drops jobs that have ended from a list. mu is held.
func (w *Worker) purge(list []*job) []*job {
	return slices.DeleteFunc(list, func(j *job) bool {
		if !j.ended() {
			return false
		}
		w.settle.Go(func() { w.drop(j) }) // it takes locks
		return true
	})
}

// begin takes pages, and on decode opens the room on every rank. False: there is no place yet.
func (w *Worker) begin(j *job) bool {
	size := w.cfg.Geometry.PageSize
	tokens := len(j.Prompt)
	if w.cfg.Side == room.Decode {
		tokens += j.MaxTokens
	}
	n := min((tokens+size-1)/size, w.cfg.Pages)
	if !w.hold(j, n) {
		return false
	}
	if w.cfg.Side == room.Decode {
		if err := w.openReceive(j, (len(j.Prompt)+size-1)/size); err != nil {
			j.fail(causeOf(err, w.cfg.Side))
		}
	}
	return true
}

// openSend makes the job's senders; the room's verdict ends a job that failed, success is noticed by whoever waits.
func (w *Worker) openSend(j *job) error {
	for _, p := range w.prefills {
		tx, err := p.Send(j.Room)
		if err != nil {
			return err
		}
		j.senders, j.halves = append(j.senders, tx), append(j.halves, tx)
	}
	w.join(j)
	return nil
}

func (w *Worker) openReceive(j *job, pages int) error {
	for i, d := range w.decodes {
		rx, err := d.Open(j.Room, handoff.Peer{Bootstrap: j.Bootstrap, DPRank: j.DPRank})
		if err != nil {
			return err
		}
		j.halves = append(j.halves, rx)
		if err := rx.Post(handoff.Destination{Pages: j.pages[i][:pages], Aux: j.slot}); err != nil {
			return err
		}
	}
	w.join(j)
	return nil
}

// join makes the room one of all ranks, and wakes the scheduler at its verdict.
func (w *Worker) join(j *job) {
	j.group = handoff.NewGroup(j.halves...)
	done := j.group.Done()
	w.settle.Go(func() {
		<-done
		if v := j.group.Verdict(); !v.OK() {
			j.end("", v.Cause)
		} else if w.cfg.Side == room.Prefill {
			j.end(finishLength, nil)
		}
		w.poke()
	})
	for _, h := range j.halves {
		if tx, ok := h.(*handoff.Sender); ok {
			w.settle.Go(func() {
				<-tx.Ready()
				w.poke()
			})
		}
	}
}

// running takes the jobs that are over out of the active list and returns the others.
func (w *Worker) running() []*job {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = w.purge(w.active)
	return slices.Clone(w.active)
}

// ---- prefill

// prefillStep computes one chunk of every request whose decode side has published its pages, Config.Chunk tokens in all, shared fairly.
func (w *Worker) prefillStep() bool {
	var ready []*job
	for _, j := range w.running() {
		if j.pos < len(j.Prompt) {
			ready = append(ready, j)
		}
	}
	if len(ready) == 0 {
		return false
	}
	share := max(1, w.cfg.Chunk/len(ready))
	var seqs []llm.Seq
	for _, j := range ready {
		end := min(j.pos+share, len(j.Prompt))
		seqs = append(seqs, llm.Seq{Tokens: j.Prompt[j.pos:end], Pos: j.pos, Pages: j.pages, Logits: end == len(j.Prompt)})
	}
	out, err := w.in.Step(context.Background(), seqs)
	for i, j := range ready {
		if err != nil {
			j.fail(room.NewCause(room.Internal, room.Prefill, "", err.Error()))
			continue
		}
		j.pos += len(seqs[i].Tokens)
		w.hand(j, out[i])
	}
	return true
}

func isReady(senders []*handoff.Sender) bool {
	for _, tx := range senders {
		select {
		case <-tx.Ready():
		default:
			return false
		}
	}
	return len(senders) > 0
}

// hand passes on the pages that a chunk has completed; the last chunk takes the partial page and the aux slot along.
func (w *Worker) hand(j *job, logits []float32) {
	size := w.cfg.Geometry.PageSize
	last := j.pos == len(j.Prompt)
	end := j.pos / size
	if last {
		end = (j.pos + size - 1) / size
		digest := digestOf(logits)
		a := aux{room: j.Room, token: j.Sampler.Sample(logits, j.pos), prompt: len(j.Prompt), digest: digest}
		for _, b := range w.aux {
			a.put(b[j.slot*auxLen:])
		}
		j.out <- token{a.token, digest}
	}
	if end == j.handed && !last {
		return
	}
	w.emit(event.Computed, event.Event{Room: j.Room, Chunk: j.chunk, Pages: end - j.handed, Rank: -1})
	for i, tx := range j.senders {
		from := min(max(j.handed, tx.Prefix()/size), end) // decode holds the pages before it already
		c := handoff.Chunk{Pages: j.pages[i][from:end], Aux: -1, Last: last}
		if last {
			c.Aux = j.slot
		}
		if err := tx.Chunk(c); err != nil {
			j.fail(causeOf(err, room.Prefill))
			return
		}
	}
	j.handed, j.chunk = end, j.chunk+1
}

// ---- decode

// decodeStep gives each request whose KV has arrived its next token.
func (w *Worker) decodeStep() bool {
	var seqs []llm.Seq
	var ready []*job
	for _, j := range w.running() {
		if j.ids == nil && !w.arrived(j) {
			continue
		}
		if j.ended() {
			continue
		}
		n := len(j.ids)
		seqs = append(seqs, llm.Seq{Tokens: j.ids[n-1:], Pos: n - 1, Pages: j.pages, Logits: true})
		ready = append(ready, j)
	}
	if len(seqs) == 0 {
		return false
	}
	out, err := w.in.Step(context.Background(), seqs)
	for i, j := range ready {
		if err != nil {
			j.fail(room.NewCause(room.Internal, room.Decode, "", err.Error()))
			continue
		}
		w.push(j, token{j.Sampler.Sample(out[i], len(j.ids)), digestOf(out[i])})
	}
	return true
}

// arrived takes a room whose verdict is Success into the batch: its first token comes in the aux slot.
func (w *Worker) arrived(j *job) bool {
	if j.group == nil {
		return false
	}
	select {
	case <-j.group.Done():
	default:
		return false
	}
	if !j.group.Verdict().OK() {
		return false
	}
	for _, b := range w.aux {
		a, err := readAux(b[j.slot*auxLen:], j.Room, len(j.Prompt), w.cfg.Model.Config().Vocab)
		if err != nil {
			j.fail(room.NewCause(room.Corrupt, room.Decode, j.Bootstrap, err.Error()))
			return false
		}
		if j.ids == nil {
			j.ids = slices.Clone(j.Prompt)
			w.emit(event.FirstToken, event.Event{Room: j.Room, Chunk: -1, Rank: -1})
			w.push(j, token{a.token, a.digest})
		}
	}
	return true
}

// push gives a token to the request, and ends it at the end of the text or at its limit.
func (w *Worker) push(j *job, t token) {
	j.ids = append(j.ids, t.id)
	j.out <- t
	switch made := len(j.ids) - len(j.Prompt); {
	case t.id == w.cfg.Model.Tokenizer().EOS() && !j.IgnoreEOS:
		j.end(finishStop, nil)
	case made >= j.MaxTokens:
		j.end(finishLength, nil)
	}
}
